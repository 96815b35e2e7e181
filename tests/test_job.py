"""What a config's model section means, for each family of models."""

import jax
import numpy as np
import pytest

from tests.tiny_job import FACTS, batches, tiny_config
from vit_jax import cli, flops
from vit_jax import config as config_lib
from vit_jax import job as job_lib
from vit_jax.errors import UsageError
from vit_jax.models import create_model, model_fields
from vit_jax.models.mixer import Mixer
from vit_jax.models.resnet import ResNet
from vit_jax.models.vit import ViT

UNSHAPED = {f"model__{name}": None for name in ("width", "depth", "mlp_dim", "num_heads")}
SMALL = {
    "mu/4": {"model__num_registers": 2, "model__swiglu": True},
    "R26+mu/16": {
        "model__backbone": (1,), "model__backbone_width": 0.5, "model__patch_size": 1, "model__scan": True,
    },
    "R26x0.5": {**UNSHAPED, "model__depths": (1, 1), "model__generation": "v1"},
    "Mixer-S/4": {
        "model__mlp_dim": None, "model__num_heads": None, "model__tokens_mlp_dim": 8,
        "model__channels_mlp_dim": 16, "model__stoch_depth": 0.1,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
def test_every_family_trains(name):
    job = job_lib.build(tiny_config(model__name=name, **SMALL[name]), FACTS, jax.devices()[:2])
    assert job.flops_per_image == 3 * flops.forward_flops(job.model)
    state, step = job.create_state(), job.lower_train_step().compile()
    losses = []
    for batch in list(batches(job, 1)) * 12:
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
    assert np.isfinite(losses).all() and losses[-1] < 0.9 * losses[0], losses


def test_every_field_of_every_family_is_a_key_and_the_reverse():
    fields = set().union(*(model_fields(name) for name in ("B/16", "R50+B/16", "R50x1", "Mixer-B/16")))
    given = {"num_classes", "constrain", "gather", "mask_token"}  # by the data, the mesh and the task
    assert fields - given == set(config_lib.base_config().model) - {"name"}


def test_unset_keys_leave_the_models_own_defaults():
    facts = FACTS.__class__(64, 5, (64, 64, 3), (), (127.5,) * 3, (127.5,) * 3)
    for name in ("Ti/16", "R50+Ti/16", "R26x1", "Mixer-S/16"):
        ours = job_lib.build_eval(tiny_config(model__name=name, **UNSHAPED), facts, jax.devices()[:1]).model
        plain = create_model(name, num_classes=5, image_size=(64, 64))
        for field in model_fields(name) - {"constrain", "gather", "dtype", "softmax_dtype"}:
            assert getattr(ours, field) == getattr(plain, field), (name, field)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (dict(model__name="R50x1", model__pool="gap"), "model.pool is 'gap', but R50x1 has no such field"),
        (dict(model__name="R50x1", model__dropout=0.1), "model.dropout is 0.1, but R50x1"),
        (dict(model__name="Mixer-S/4", model__remat="full"), "model.remat is 'full', but Mixer-S/4"),
        (dict(model__name="mu/4", model__generation="v1"), "model.generation is 'v1', but mu/4"),
        (dict(model__name="R50y1"), "'R50y1' .did you mean 'R50x1'"),
        (dict(model__name="R26x1", model__depths=(1, -1)), r"depths is \(1, -1\)"),
    ],
)
def test_fields_of_another_family_are_refused_by_name(overrides, says):
    unshaped = {} if overrides["model__name"] == "mu/4" else UNSHAPED
    with pytest.raises(UsageError, match=says) as error:
        job_lib.build(tiny_config(**unshaped, **overrides), FACTS, jax.devices()[:1])
    assert "\n" not in str(error.value)


def test_model_keys_from_the_command_line():
    words = [
        "--config=quickstart", "--config.model.num_registers=4", "--config.model.qk_norm=true",
        "--config.model.layer_scale=1", "--config.model.backbone=(1,2)", "--config.model.class_token=false",
        "--config.model.gelu=erf", "--config.model.backbone_width=0.5", "--config.model.depths=()",
    ]  # fmt: skip
    config = cli.parse(cli.Parser("prog", ""), words).config
    values = {word.removeprefix("--config.model.").split("=")[0] for word in words[1:]}
    assert {name: config.model[name] for name in values} == {
        "num_registers": 4, "qk_norm": True, "layer_scale": 1.0, "backbone": (1, 2), "class_token": False,
        "gelu": "erf", "backbone_width": 0.5, "depths": (),
    }  # fmt: skip
    assert config_lib.from_dict(config_lib.to_dict(config)).to_dict() == config.to_dict()


def test_families():
    for name, family in (("B/16", ViT), ("R50+B/16", ViT), ("R50x1", ResNet), ("Mixer-B/16", Mixer)):
        assert type(create_model(name, num_classes=1, image_size=224)) is family


def test_the_power_of_a_polynomial_schedule_is_a_key():
    config = tiny_config(schedule="polynomial", schedule_power=3.0, schedule_end_lr=1e-3)
    schedule, total = job_lib.schedule_of(config, FACTS)  # 2 steps of warm-up, 20 in all, peak 0.01
    assert float(schedule(11)) == pytest.approx(1e-3 + (0.01 - 1e-3) * 0.5**3)
    assert float(schedule(total)) == pytest.approx(1e-3)
    config.schedule_power = 0.0
    with pytest.raises(UsageError, match="schedule_power is 0"):
        job_lib.schedule_of(config, FACTS)
