"""Every shipped config: documented, buildable at full size with every argument, and able to step when shrunken.

To add a config: a line in ARGUMENTS with the arguments that a user may give (or in EVALUATED, if it isn't for
`train`). If it combines model family, loss, optimizer and device-side augmentation as none of STEPS does, the tests
say so: add one such argument to STEPS, which compiles it.
"""

import ast
import itertools
import json
import re

import jax
import numpy as np
import pytest

from tests.shrunken import batch_of, facts_of, name_of, shrink
from vit_jax import config as config_lib
from vit_jax import job as job_lib
from vit_jax import optim
from vit_jax.data import preprocess
from vit_jax.errors import UsageError
from vit_jax.models import variants
from vit_jax.param_groups import paths_of, split
from vit_jax.planning import topology

NAMES = config_lib.config_names()
EVALUATED = ("fewshot", "vtab")  # for vit_jax.evaluate and vit_jax.vtab
RUNNABLE = [name for name in NAMES if name not in ("base", *EVALUATED)]


def product(*words):
    """Arguments with one word of each group: product(("B/16", "L/16"), ("", "epochs=30"))."""
    return [",".join(filter(None, chosen)) for chosen in itertools.product(*words)]


TABLE_3 = (
    "B/32", "B/16", "L/32", "L/16", "H/14", "R50x1", "R50x2", "R101x1", "R152x1", "R152x2", "R50+B/32", "R50+B/16",
    "R50+L/32", "R50+L/16",
)  # fmt: skip
# Arguments of every config for `train`; "" is the config without one.
ARGUMENTS = {
    "ablations/axial": ["", "Axial-B/32", "Axial-B/16", "B/32", "B/16"],
    "ablations/head": ["", "tok", "gap", "map,lr=1e-3", "gap,model=L/32", "gap,classes=1000,data=folder:x"],
    "ablations/optimizer": ["", *product(("R50x1", "R152x2"), ("optimizer=adam", "optimizer=sgd,lr=0.1"))],
    "ablations/posemb": [
        "", "none", "sincos2d", "relative", "relative,at=shared", "learn2d,model=L/16",
        *product(("learn", "learn2d"), ("at=stem", "at=every", "at=shared")),
    ],
    "ablations/shape": [
        "", "base", "depth", "depth,by=8", "width", "width,by=1/2", "mlp,by=3/2", "patch", "patch,by=4", "all",
    ],
    "augreg": [
        "", "S/16,data=i21k,epochs=30", "L/16,source=tfds:x",
        *product(("Ti/16", "S/32", "S/16", "B/32", "B/16", "L/16", "R+Ti/16", "R26+S/32", "R50+L/32"),
                 ("data=i1k", "data=i21k"),
                 [f"aug={a}" for a in ("none", "light1", "light2", "medium1", "medium2", "strong1", "strong2")],
                 ("wd=0.1", "wd=0.03"), ("reg=0", "reg=0.1")),
    ],
    "data_size": [
        "", *product(("B/16", "L/32", "R50x1"), ("on=i1k", "images=9M")),
        "B/16,smoothing=0.1", "L/16,on=i21k,wd=0.1,dropout=0", "H/14,images=90M", "b/32,images=30M",
        "b/16,on=i21k,images=3%",
    ],
    "fashion_mnist": [""],
    "finetune": [
        "", *product(("dataset=cifar100", "dataset=imagenet2012", "dataset=oxford_iiit_pet", "dataset=folder:x"),
                     ("recipe=paper", "recipe=augreg", "train=probe", "size=512", "norm=imagenet")),
    ],
    "folder": ["", "flowers"],
    "plain_s16": ["", "90", "150", "300"],
    "pretrain_i21k": [
        "", "B/16", "B/32", "H/14", "g/14", "G/14", *product(("L/16", "L/32"), ("epochs=30", "epochs=90")),
    ],
    "pretrain_i1k": ["", "B/16,epochs=90", *TABLE_3],
    "pretrain_jft": ["", "L/16,epochs=14", "R50+L/16,epochs=14", "B/16,classes=21843", *TABLE_3],
    "pretrain_masked": [
        "", "B/16,share=0.15,steps=100000", "target=patch_4x4", "target=pixels,data=folder:x,val=test", "L/16",
        "G/14",
    ],
    "quickstart": [""],
    "scaling_g14": ["", "G/14", "g/14", "steps=300000,data=folder:x,classes=1000"],
    "tiny/architecture": ["", *product(("vit", "resnet", "hybrid"), ("folder=x,steps=50",))],
    "tiny/cifar10": ["", "folder:x,epochs=2.5", "machine=gpu"],
    "tiny/data_size": ["", *product(("share=10%", "share=500"), ("model=large", "dropout=0.1", "smoothing=0"))],
    "tiny/masked_finetune": ["", "runs/masked,folder=x,lr=3e-4"],
    "tiny/masked_pretrain": ["", "x,target=pixels"],
    "tiny/head": ["", "folder=x,pool=tok", "x,pool=gap,lr=1e-3", "x,pool=map,steps=50"],
    "tiny/posemb": [
        "", "x,kind=none", "x,kind=sincos2d", "x,kind=relative", "x,kind=relative,at=shared,steps=50",
        *product(("x",), ("kind=learn", "kind=learn2d"), ("at=stem", "at=every", "at=shared")),
    ],
    "tiny_imagenet": [""],
}  # fmt: skip

# One spec for each combination (see `combination`): what is compiled. Those not among FAST are slow.
STEPS = [
    "ablations/axial",
    "ablations/head:map",
    "ablations/optimizer:R50x1,optimizer=sgd",
    "data_size:B/16,smoothing=0.1",
    "augreg:B/16,aug=none,reg=0.1",
    "augreg:L/16,aug=strong1,reg=0.1",
    "augreg:B/32,data=i1k,aug=none,reg=0.1",
    "augreg:R+Ti/16,aug=none,reg=0.1",
    "augreg:R50+L/32,aug=medium1,reg=0.1",
    "augreg:R26+S/32,data=i1k,aug=none",
    "augreg:R26+S/32,data=i1k,aug=medium2,reg=0.1",
    "fashion_mnist",
    "finetune",
    "finetune:recipe=augreg",
    "finetune:train=probe",
    "finetune:dataset=imagenet2012,size=512",
    "plain_s16",
    "pretrain_i21k:G/14",
    "pretrain_i1k:R50x1",
    "pretrain_masked",
    "pretrain_masked:G/14",
    "quickstart",
    "scaling_g14",
    "tiny/architecture:hybrid",
    "tiny/architecture:resnet",
    "tiny/cifar10:machine=gpu",
    "tiny/data_size",
    "tiny/head:x,pool=map",
    "tiny/posemb:x,kind=relative",
    "tiny_imagenet",
]  # fmt: skip
FAST = ("augreg:L/16,aug=strong1,reg=0.1", "finetune:recipe=augreg", "plain_s16", "quickstart", "scaling_g14")
MOST_COMPILES = 40


def specs_of(name):
    return [f"{name}:{arg}" if arg else name for arg in ARGUMENTS[name]]


def combination(config):
    """Model family, loss, optimizer and augmentation on the device: what a step is made of, sizes aside.

    Choose for STEPS those that scan, drop out and drop branches, for they take any other with them.
    """
    optimizer, family = config.optim, variants.model_family(name_of(config))
    hybrid = variants.variant_fields(name_of(config)).get("backbone") is not None
    return (
        config.task,
        ("hybrid" if hybrid else family, config.model.pool or "tok"),
        (config.loss, config.label_smoothing > 0),
        (optimizer.name, optimizer.momentum_dtype, optimizer.frozen != "", config.ema_decay is not None),
        config.mixup_alpha > 0,
    )


def test_every_config_is_in_the_table():
    assert set(ARGUMENTS) == set(RUNNABLE)


@pytest.mark.parametrize("name", NAMES)
def test_docstring_says_what_it_is_and_the_command(name):
    text = (config_lib.shipped_configs() / f"{name}.py").read_text()
    doc = ast.get_docstring(ast.parse(text))
    assert doc
    if name != "base":
        assert f"--config=configs/{name}.py" in doc
        assert ("--checkpoint=" if name in EVALUATED else "--workdir=") in doc
        assert re.search(r"paper row|Table \d", doc)


# ---- full size

MILLIONS = {  # parameters
    "pretrain_i21k:B/16": 103.2, "pretrain_i21k:B/32": 104.8, "pretrain_i21k:L/16,epochs=30": 326.7,
    "pretrain_i21k:L/32,epochs=90": 328.9, "pretrain_i21k:H/14": 660.3, "plain_s16": 22.2,
    "pretrain_masked": 86.2,
}  # fmt: skip


JOBS = {}  # by what decides the state


@pytest.mark.parametrize("name", RUNNABLE)
def test_every_argument_builds_at_full_size(name):
    """State, shardings and mesh on a slice of 16 chips, nothing allocated.

    Once for all that have the same state, the number of classes aside.
    """
    counted = set()
    for spec in specs_of(name):
        config = config_lib.load(spec)
        config.model.name = name_of(config)
        facts = facts_of(config)
        stateless = ("dropout", "attn_dropout", "stoch_depth", "head_bias_init")
        model = {name: value for name, value in config.model.items() if name not in stateless}
        key = json.dumps(
            [model, config.masked_patch.to_dict(), config.optim.name, config.optim.momentum_dtype,
             config.optim.frozen, config.ema_decay, config.mesh.to_dict(), facts.image_shape,
             spec if spec in MILLIONS else ""]
        )  # fmt: skip
        if key not in JOBS:
            (place,) = topology.parse("v5e:4x4")
            JOBS[key] = job_lib.build(config, facts, topology.devices(place))
        params = JOBS[key].abstract_state.params
        schedule, total = job_lib.schedule_of(config, facts)
        warmup = job_lib.in_steps(config, facts, config, "warmup") or 0
        assert 0 < warmup < total or warmup == 0, spec
        assert float(schedule(warmup)) == pytest.approx(config.optim.lr, rel=1e-5), spec
        trained, _ = split(params, JOBS[key].groups.frozen)
        if config.optim.wd:
            optim.decay_factors(trained, config.optim.wd_mask, config.optim.wd_mults)
        for text in (config.data.preprocess_train, config.data.preprocess_eval):
            preprocess.parse(text)
        if spec in MILLIONS:
            millions = sum(x.size for x in jax.tree.leaves(params)) / 1e6
            assert millions == pytest.approx(MILLIONS[spec], abs=0.1), spec
            counted.add(spec)
    assert counted == {spec for spec in MILLIONS if spec.partition(":")[0] == name}


# ---- steps


def test_every_combination_takes_steps():
    stepped = {combination(config_lib.load(spec)) for spec in STEPS}
    missing = {}
    for spec in itertools.chain.from_iterable(map(specs_of, ARGUMENTS)):
        missing.setdefault(combination(config_lib.load(spec)), spec)
    missing = {combo: spec for combo, spec in missing.items() if combo not in stepped}
    assert not missing, "add to STEPS: " + "\n".join(f"{spec!r}: {combo}" for combo, spec in missing.items())
    assert len(stepped) == len(STEPS) <= MOST_COMPILES
    assert set(FAST) <= set(STEPS)


@pytest.mark.parametrize(
    "spec", [pytest.param(s, marks=[] if s in FAST else pytest.mark.slow) for s in STEPS]
)
def test_steps_on_a_shrunken_model(spec):
    """Four: with a warm-up the first one's rate is 0, a head of zeros lets nothing through in the next, nor do the
    branches of a ResNet, whose last scale is 0, in the third.
    """
    config = config_lib.load(spec)
    shrink(config)
    job = job_lib.build(config, facts_of(config), jax.devices()[:1])
    step, state = job.lower_train_step().compile(), job.create_state()
    before = jax.device_get(state.params)
    for index in range(4):
        state, metrics = step(state, batch_of(config, job, index))
        assert np.isfinite(metrics["loss"]) and float(metrics["skipped"]) == 0
        np.testing.assert_allclose(metrics["lr"], job.schedule(index), rtol=1e-6)
        if index == (config.warmup_steps or 0):
            assert float(metrics["lr"]) == pytest.approx(config.optim.lr)
    trained, still = split(state.params, job.groups.frozen)
    trained_before, still_before = split(before, job.groups.frozen)
    moved = [np.any(a != b) for a, b in zip(*map(jax.tree.leaves, (trained_before, trained)), strict=True)]
    assert np.mean(moved) > 0.8
    assert all(
        np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (still_before, still)), strict=True)
    )


# ---- arguments


def test_the_pretraining_configs_by_argument():
    config = config_lib.load("pretrain_i21k:L/16,epochs=30,data=arrayrecord:gs://b/i21k,val=validation")
    assert (config.total_epochs, config.model.remat, config.mesh.fsdp) == (30, "full", 16)
    assert config.data.train == "arrayrecord:gs://b/i21k@train"
    assert config.data.val == "arrayrecord:gs://b/i21k@validation"
    assert config_lib.load("pretrain_i21k:G/14").model.pool == "map"
    for wrong in (
        "pretrain_i21k:S/16",
        "pretrain_i21k:L/16,epochs=x",
        "pretrain_i21k:L/16,wd=1",
        "plain_s16:100",
    ):
        with pytest.raises(UsageError):
            config_lib.load(wrong)


@pytest.mark.parametrize(
    ("arg", "lr", "epochs", "scan"),
    [("B/16", 8e-4, 7, False), ("L/16,epochs=14", 4e-4, 14, True), ("H/14", 3e-4, 14, True),
     ("R50x2", 1e-3, 7, False), ("R50+L/32", 2e-4, 7, True)],
)  # fmt: skip
def test_rows_of_jft(arg, lr, epochs, scan):
    config = config_lib.load(f"pretrain_jft:{arg}")
    assert (config.optim.lr, config.total_epochs, config.model.scan) == (lr, epochs, scan)
    assert (config.optim.wd, config.model.dropout, config.optim.clip_norm) == (0.1, 0, None)
    assert (config.model.rep_size is None) == arg.startswith("R50x")


def test_rows_of_the_ablations():
    config = config_lib.load("ablations/posemb:learn2d,at=every")
    jft = config_lib.load("pretrain_jft:B/16")
    assert (config.model.posemb, config.model.posemb_at) == ("learn2d", "every")
    config.model.posemb = config.model.posemb_at = None
    assert config == jft
    rates = {pool: config_lib.load(f"ablations/head:{pool}").optim.lr for pool in ("tok", "gap")}
    assert rates == {"tok": 8e-4, "gap": 3e-4}
    sgd = config_lib.load("ablations/optimizer:R152x2,optimizer=sgd").optim
    assert (sgd.name, sgd.momentum, sgd.lr) == ("sgd", 0.9, pytest.approx(0.48))
    model = config_lib.load("ablations/shape:all").model
    assert (model.depth, model.width, model.mlp_dim, model.name) == (16, 2048, 4096, "L/16")
    assert (model.num_heads, model.rep_size) == (32, 2048)
    tiny = config_lib.load("tiny/head:x,pool=gap,lr=1e-3,steps=50")
    assert (tiny.model.pool, tiny.optim.lr, tiny.total_steps, tiny.warmup_steps) == ("gap", 1e-3, 50, 5)


def test_augmentation_and_regularisation_by_argument():
    config = config_lib.load("augreg:B/16,aug=strong2,wd=0.03,reg=0.1,data=i1k")
    assert "|randaug(2, 20)|" in config.data.preprocess_train
    assert (config.mixup_alpha, config.optim.wd, config.optim.wd_mode) == (0.8, 0.03, "lr_scaled")
    assert (config.model.dropout, config.model.stoch_depth, config.model.rep_size) == (0.1, 0.1, 768)
    assert (config.total_epochs, config.loss, config.optim.clip_norm) == (300, "softmax_xent", 1)
    published = config_lib.load("augreg:R50+L/32")
    assert "|randaug(2, 15)|" in published.data.preprocess_train
    assert (published.mixup_alpha, published.optim.wd, published.model.dropout) == (0.2, 0.1, 0.1)
    assert "randaug" not in config_lib.load("augreg:S/32").data.preprocess_train
    assert config_lib.load("augreg:S/16").optim.wd == 0.03
    with pytest.raises(UsageError, match="no published setting of R26"):
        config_lib.load("augreg:R26+S/32,data=i1k")


def test_scaling_decays_the_classifier_a_hundred_times_as_much():
    config = config_lib.load("scaling_g14")
    job = job_lib.build(config, facts_of(config), topology.devices(topology.parse("v5e:4x4")[0]))
    factors = optim.decay_factors(job.abstract_state.params, config.optim.wd_mask, config.optim.wd_mults)
    factors = {path: factor for path, factor in paths_of(factors).items() if factor}
    assert factors.pop("head/kernel") == 100 and set(factors.values()) == {1.0}
    assert all(path.endswith("/kernel") for path in factors)
    assert float(job.schedule(510_000)) == pytest.approx(8e-4 / 51**0.5)
    assert float(job.schedule(975_000)) == pytest.approx(8e-4 / 97.5**0.5 / 2)


def test_masked_patches_by_argument():
    config = config_lib.load("pretrain_masked:L/16,target=patch_4x4,share=0.15,steps=100000,val=validation")
    assert (config.task, config.masked_patch.target, config.masked_patch.share) == (
        "masked_patch", "patch_4x4", 0.15
    )  # fmt: skip
    assert (config.total_steps, config.model.scan) == (100_000, True)
    assert config.data.val == "arrayrecord:jft300m@validation"
    config = config_lib.load("pretrain_masked")
    job = job_lib.build(config, facts_of(config), topology.devices(topology.parse("v5e:4x4")[0]))
    assert (job.task.count, job.model.num_classes, job.total_steps) == (98, 512, 1_000_000)
    assert float(job.schedule(10_000)) == pytest.approx(2e-4) and job.model.has_class_token
    for wrong in ("target=colour", "share=half", "lr=1"):
        with pytest.raises(UsageError):
            config_lib.load(f"pretrain_masked:{wrong}")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("augreg:aug=medium3", "known: light1, light2, medium1|medium1"),
        ("augreg:wd=0.3", "0.1, 0.03"),
        ("augreg:epochs=100", "give 30 or 300"),
        ("augreg:model=B/16,B/32", "given twice"),
        ("augreg:B/8", "'B/16'|B/16"),
        ("augreg:mixup=0.2", "known: .*aug"),
        ("pretrain_i1k:S/16", "B/16"),
        ("pretrain_i1k:wd=1", "known: .*epochs"),
        ("pretrain_jft:R200x3", "R50x1"),
        ("pretrain_jft:classes=all", "give numbers"),
        ("scaling_g14:L/16", "G/14"),
        ("ablations/posemb:learn3d", "'learn2d'"),
        ("ablations/posemb:learn,at=top", "known: stem, every, shared"),
        ("ablations/head:gap,model=R50x1", "no class token"),
        ("ablations/shape:patch,by=3", "no whole number"),
        ("ablations/shape:width,by=1/64", "no model for 224"),
        ("ablations/optimizer:B/16", "R50x1, R152x2"),
        ("tiny/posemb:steps=1e3", "whole number"),
        ("tiny/head:pool=none", "known: tok, gap, map"),
        ("scaling_g14:steps=1e6", "whole number"),
    ],
)
def test_unknown_arguments_list_the_known_ones(wrong, says):
    with pytest.raises(UsageError) as e:
        config_lib.load(wrong)
    assert re.search(says, f"{e.value} {e.value.remedy}")


def test_the_few_shot_config_by_argument():
    config = config_lib.load("fewshot")
    assert config.features.data == (("own", "", "", ""),)
    assert set(config.features.methods) == {"fewshot", "linear", "knn"}
    assert (config.fewshot.l2, config.fewshot.shots, config.fewshot.seeds) == (1024, (1, 5, 10, 25), 3)
    config = config_lib.load(
        "fewshot:folder:a/pets+folder:b/cars,methods=knn,test=validation,imagenet=/x,sets=real+a"
    )
    assert config.features.data == (
        ("pets", "folder:a/pets", "", "validation"), ("cars", "folder:b/cars", "", "validation"),
    )  # fmt: skip
    assert config.imagenet.real == "folder:/x/validation@all" and config.imagenet.a == "folder:/x/a@all"
    assert config.imagenet.v2 == "" and config.imagenet.real_labels == "/x/real.json"
    assert config_lib.load("fewshot:methods=").features.data == ()
    for wrong in ("methods=svm", "data=digits,methods=", "imagenet=/x,sets=sketch", "folder=a"):
        with pytest.raises(UsageError):
            config_lib.load(f"fewshot:{wrong}")


def test_the_small_data_size_study_by_argument():
    config = config_lib.load(
        "tiny/data_size:x/y,share=10%,model=large,wd=0.3,dropout=0.2,smoothing=0,steps=50"
    )
    assert config.data.train == "folder:x/y@train{:10%-stratified}"
    assert (config.data.val, config.data.test) == (
        "folder:x/y@train{90%:-stratified}",
        "folder:x/y@validation",
    )
    assert (config.model.width, config.model.dropout, config.optim.wd, config.label_smoothing) == (
        192,
        0.2,
        0.3,
        0,
    )
    assert (config.total_steps, config.warmup_steps) == (50, 5)
    assert config_lib.load("tiny/data_size").data.train.endswith("@train{:90%-stratified}")
    for wrong in ("model=huge", "wd=x", "steps=1.5", "part=3%"):
        with pytest.raises(UsageError):
            config_lib.load(f"tiny/data_size:{wrong}")


def test_the_data_size_study_by_argument():
    config = config_lib.load("data_size:L/16,on=i1k,wd=0.1,dropout=0.2,smoothing=0.1")
    other = config_lib.load("pretrain_i1k:L/16")
    other.optim.wd, other.model.dropout, other.label_smoothing = 0.1, 0.2, 0.1
    assert config.to_dict() == other.to_dict()

    jft = {
        images: config_lib.load(f"data_size:B/32,images={images}") for images in ("9M", "30M", "90M", "300M")
    }
    splits = [c.data.train.partition("@")[2] for c in jft.values()]
    assert splits == ["train{:9000000}", "train{:30000000}", "train{:90000000}", "train{:99.9%}"]
    facts = facts_of(jft["9M"])
    for c in jft.values():
        assert c.data.val == "arrayrecord:jft300m@train{99.9%:}"
        assert job_lib.schedule_of(c, facts)[1] == 7 * 303_000_000 // 4096  # whatever the images
        assert (c.early_stop.metric, c.optim.lr, c.optim.wd) == ("eval/val/accuracy", 8e-4, 0.1)
        assert c.features.data == (("imagenet", "tfds:imagenet2012", "train", "validation"),)
        assert c.fewshot.shots == (5,)
    half = config_lib.load("data_size:b/32,images=3%,on=i21k,val=validation,fewshot=none,data=arrayrecord:x")
    assert (half.data.train, half.data.val) == ("arrayrecord:x@train{:3%}", "arrayrecord:x@validation")
    assert half.features.data == () and half.data.train_examples == 425_914
    width = variants.variant_fields(half.model.name)["width"]
    assert (width, half.model.rep_size) == (384, 384)
    for wrong in ("S/32", "on=jft3b", "images=some", "wd=x", "images=-3%"):
        with pytest.raises(UsageError):
            config_lib.load(f"data_size:{wrong}")
