"""The ViT paper's questions (arXiv 2010.11929) at the scale of two CPU cores: configs/tiny/, 64 pixels, 400 steps.

Its answers are of models with 86 M parameters and more, pre-trained on up to 300 M images, which is why they
needn't hold here.
"""

from vit_jax.studies.plan import Experiment, Run

_STEPS = 400  # of 64 images

ARCHITECTURE = Experiment(
    name="architecture",
    title="ViT, ResNet and hybrid at equal FLOPs",
    paper="Figure 5: ViT takes 2 to 4 times less compute than ResNets for the same accuracy; hybrids are a little "
    "better than ViT at small budgets. Figure 3: on the smallest pre-training set ResNets are ahead.",
    runs=tuple(
        Run(name, f"tiny/architecture:{name},folder={{folder}}") for name in ("vit", "resnet", "hybrid")
    ),
    seeds=3,
    steps=_STEPS,
)

DATA_SIZE = Experiment(
    name="data_size",
    title="Accuracy by the share of the training images",
    paper="Figures 3 and 4: larger models need more images to be the better ones; with few they overfit.",
    runs=tuple(
        Run(
            f"{model}-{share}",
            f"tiny/data_size:{{folder}},model={model},share={share}%",
            x=share,
            series=model,
        )
        for model in ("small", "large")
        for share in (10, 30, 90)
    ),
    seeds=2,
    steps=_STEPS,
    chosen_by="eval/val/accuracy",
    x_label="share of the training images, %",
)

POSEMB = Experiment(
    name="posemb",
    title="Position embeddings",
    paper="Table 8, 5-shot on ImageNet: without position embedding 61.4 %, with a 1-D, 2-D or relative one 64.0 to "
    "64.2 %.",
    runs=tuple(
        Run(kind, f"tiny/posemb:{{folder}},kind={kind}")
        for kind in ("none", "learn", "sincos2d", "learn2d", "relative")
    ),
    seeds=3,
    steps=_STEPS,
    metric="eval/val/accuracy",
)

HEAD = Experiment(
    name="head",
    title="Class token, mean or attention pooling",
    paper="Appendix D.3: a class token and the mean of the patches do equally well, each with a rate of its own.",
    runs=tuple(
        Run(f"{pool}-{lr}", f"tiny/head:{{folder}},pool={pool},lr={lr}")
        for pool, lr in (("tok", "2e-3"), ("gap", "2e-3"), ("map", "2e-3"), ("tok", "1e-3"), ("gap", "1e-3"))
    ),
    seeds=2,
    steps=_STEPS,
    metric="eval/val/accuracy",
)

MASKED = Experiment(
    name="masked",
    title="Masked patch prediction first, or from scratch, with a tenth of the labels",
    paper="Section 4.6: masked patch prediction is worth 2 % on ImageNet over training from scratch, 4 % short "
    "of supervised pre-training.",
    runs=(
        Run("pretrain", "tiny/masked_pretrain:{folder}", own_length=True, shown=False),
        Run(
            "masked",
            "tiny/masked_finetune:init={experiment}/pretrain/{seed},folder={folder}",
            own_length=True,
        ),
        Run("scratch", "tiny/masked_finetune:folder={folder}", own_length=True),
    ),
    seeds=2,
    steps=_STEPS,
)

# The dearest last: the large model's runs are five times the small one's.
STUDY = (ARCHITECTURE, POSEMB, HEAD, MASKED, DATA_SIZE)
