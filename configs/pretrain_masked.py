"""Masked patch prediction, ViT (arXiv 2010.11929) section 4.6 and appendix B.1.2: pretraining without labels.

Not a row of Table 3. Half of an image's patches are corrupted: 80 % of them by a learned mask token, 10 % by
another patch of the image, 10 % not at all; the model predicts what they were. JFT, 1M steps (about 14 epochs) of
4096 images, 224 px, Adam, learning rate 2e-4, warm-up 10,000 steps, cosine decay, inception crop and flip. Weight
decay is 0.1 as in Table 3's rows of JFT; what it was here isn't known. The argument is a model and KEY=VALUE pairs:

    model    any ViT; B/16 (default) is the paper's
    target   mean_colour (default): the 3-bit mean colour of the patch, 512 classes | patch_4x4: a 4x4 version of
             it, 16 predictions of 512 classes | pixels: all of them, by squared error, "slightly worse" there
    share    of the patches that are corrupted, 0.5; 0.15 was worse there
    steps    1,000,000; the paper saw most of the gain after 100,000
    data     a source with the splits below, arrayrecord:jft300m by default. No label is looked at: unlabelled
             images can lie in a single folder, ROOT/train/ANY_NAME/
    train    split that is trained on, "train" by default
    val      split that is evaluated 20 times a run: loss and accuracy of the predictions, the same patches hidden
             every time; none by default

L and larger scan their blocks, recompute them in the backward pass and split parameters 16 ways (mesh.fsdp): the
number of chips must be a multiple of 16. Computation in bfloat16 with parameters, softmax and norms in float32.

Expected: B/16 fine-tuned on ImageNet at 384 px reaches 79.9 top-1, 2 over training from scratch and 4 under
supervised pretraining. JFT-300M is private and no accelerator was at hand: nothing was run at this size. The same
task at two cores' scale, measured: configs/tiny/masked_pretrain.py.

    python -m vit_jax.train --config=configs/pretrain_masked.py:B/16,data=arrayrecord:gs://bucket/images \
        --workdir=gs://bucket/masked
    python -m vit_jax.train --config=configs/finetune.py:init=gs://bucket/masked,dataset=imagenet2012 \
        --workdir=gs://bucket/finetuned
"""

from ml_collections import ConfigDict

from vit_jax.config import base_config, one_of, parse_argument
from vit_jax.errors import UsageError

TARGETS = ("mean_colour", "patch_4x4", "pixels")
_DEFAULTS = {
    "model": "B/16", "target": "mean_colour", "share": "0.5", "steps": "1000000", "data": "arrayrecord:jft300m",
    "train": "train", "val": "",
}  # fmt: skip


def get_config(arg: str = "") -> ConfigDict:
    """arg: MODEL,KEY=VALUE,... as above."""
    values = parse_argument(arg, _DEFAULTS, positional="model")
    try:
        share, steps = float(values["share"]), int(values["steps"])
    except ValueError:
        raise UsageError(
            f"config arguments share={values['share']!r}, steps={values['steps']!r}", "give numbers"
        ) from None
    config = base_config()

    config.task = "masked_patch"
    config.masked_patch.target = one_of(values["target"], TARGETS, "config argument target")
    config.masked_patch.share = share

    config.total_steps = steps
    config.warmup_steps = 10_000
    config.global_batch = 4096

    config.model.name = values["model"]
    config.model.dtype = "bfloat16"
    if values["model"][0] in "LHgG":
        config.model.scan = True
        config.model.remat = "full"
        config.mesh.fsdp = 16
    if values["model"][0] in "gG":
        config.model.pool = "gap"

    config.data.train = f"{values['data']}@{values['train']}"
    config.data.val = f"{values['data']}@{values['val']}" if values["val"] else ""
    config.data.test = ""
    config.data.train_examples = 303_000_000  # about; for `plan` alone
    config.data.preprocess_train = "decode|inception_crop(224)|flip_lr|value_range(-1, 1)"
    config.data.preprocess_eval = "decode|resize_small(256)|central_crop(224)|value_range(-1, 1)"

    config.optim.name = "adam"
    config.optim.lr = 2e-4
    config.optim.wd = 0.1
    config.schedule = "cosine"

    config.eval.every_steps = max(steps // 20, 1)
    config.checkpoint.every_steps = 1000
    config.checkpoint.keep_every_steps = 50_000
    return config
