"""JFT-300M pretraining, ViT (arXiv 2010.11929) Table 3: all of its JFT rows.

Batch 4096, 224 px, Adam, weight decay 0.1 times the learning rate, no dropout, warm-up 10,000 steps, linear decay
to 1e-5; sigmoid cross-entropy with head bias -10; a tanh layer before the classifier of ViTs; inception crop, flip.
The argument is a model and KEY=VALUE pairs:

    model    rows of Table 3: peak learning rate, epochs; ImageNet top-1 after fine-tuning, of Table 6
             B/32      8e-4   7   80.73         R50x1     1e-3   7   77.54
             B/16      8e-4   7   84.15         R50x2     1e-3   7   82.12
             L/32      6e-4   7   84.37         R101x1    8e-4   7   80.67
             L/16      4e-4   7   86.30         R152x1    6e-4   7   81.88
             L/16      4e-4  14   87.12         R152x2    6e-4   7   84.97
             H/14      3e-4  14   88.08         R50+B/32  8e-4   7   84.90
                                                R50+B/16  8e-4   7   85.58
                                                R50+L/32  2e-4   7   85.68
                                                R50+L/16  4e-4   7   86.60
                                                R50+L/16  4e-4  14   87.12
             (88.04 for H/14 in Table 5; 88.55 in Table 2 is at 518 px with averaged parameters)
    epochs   of L/16 and R50+L/16 as above: 7 by default, or epochs=14; any other number is no row
    data     a source with label vectors over `classes`, arrayrecord:jft300m by default
    train    split that is trained on, "train" by default
    val      split that is evaluated 20 times a run; none by default
    classes  18291 by default (the paper says 18k)

L and larger scan their blocks, recompute them in the backward pass and split parameters 16 ways (mesh.fsdp): the
number of chips must be a multiple of 16. Computation in bfloat16 with parameters, softmax and norms in float32.
Hardware of the paper: 680 TPUv3 core-days for L/16, 2500 for H/14 (Table 2).

JFT-300M is private: nothing was run. Sets of one's own with many labels to an image suit this config as well; tell
their size with --config.data.train_examples, which `plan` counts hours by.

    python -m vit_jax.plan --config=configs/pretrain_jft.py:H/14 --topology=v5e:16x16
    python -m vit_jax.train --config=configs/pretrain_jft.py:L/16,epochs=14,data=arrayrecord:gs://bucket/images \
        --workdir=gs://bucket/l16
"""

from ml_collections import ConfigDict

from vit_jax.config import base_config, one_of, parse_argument
from vit_jax.errors import UsageError

# Peak learning rate, epochs.
ROWS = {
    "B/32": (8e-4, 7), "B/16": (8e-4, 7), "L/32": (6e-4, 7), "L/16": (4e-4, 7), "H/14": (3e-4, 14),
    "R50x1": (1e-3, 7), "R50x2": (1e-3, 7), "R101x1": (8e-4, 7), "R152x1": (6e-4, 7), "R152x2": (6e-4, 7),
    "R50+B/32": (8e-4, 7), "R50+B/16": (8e-4, 7), "R50+L/32": (2e-4, 7), "R50+L/16": (4e-4, 7),
}  # fmt: skip
_WIDTH = {"B": 768, "L": 1024, "H": 1280}
_DEFAULTS = {
    "model": "B/16", "epochs": "", "data": "arrayrecord:jft300m", "train": "train", "val": "", "classes": "18291",
}  # fmt: skip


def get_config(arg: str = "") -> ConfigDict:
    """arg: MODEL,KEY=VALUE,... as above."""
    values = parse_argument(arg, _DEFAULTS, positional="model")
    model = one_of(values["model"], ROWS, "config argument model")
    lr, epochs = ROWS[model]
    try:
        epochs, classes = float(values["epochs"] or epochs), int(values["classes"])
    except ValueError:
        raise UsageError(
            f"config arguments epochs={values['epochs']!r}, classes={values['classes']!r}", "give numbers"
        ) from None
    config = base_config()

    config.total_epochs = epochs
    config.warmup_steps = 10_000
    config.global_batch = 4096
    config.num_classes = classes

    config.model.name = model
    config.model.head_bias_init = -10.0
    config.model.dtype = "bfloat16"
    size = _WIDTH.get(model.removeprefix("R50+")[0])  # None: a ResNet
    if size is not None:
        config.model.rep_size = size
    if size is not None and size >= 1024:
        config.model.scan = True
        config.model.remat = "full"
        config.mesh.fsdp = 16

    config.data.train = f"{values['data']}@{values['train']}"
    config.data.val = f"{values['data']}@{values['val']}" if values["val"] else ""
    config.data.test = ""
    config.data.train_examples = 303_000_000  # about that
    config.data.preprocess_train = "decode|inception_crop(224)|flip_lr|value_range(-1, 1)"
    config.data.preprocess_eval = "decode|resize_small(256)|central_crop(224)|value_range(-1, 1)"

    config.loss = "sigmoid_xent"
    config.optim.name = "adam"
    config.optim.lr = lr
    config.optim.wd = 0.1
    config.schedule = "linear"
    config.schedule_end_lr = 1e-5

    config.eval.every_epochs = epochs / 20
    config.checkpoint.every_steps = 1000
    config.checkpoint.keep_every_steps = 50_000
    return config
