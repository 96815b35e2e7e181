"""The `model` group of a config and the fields of a model: what is given, what is inferred, what a run stores."""

from typing import Any

from flax import linen as nn
from ml_collections import ConfigDict

from vit_jax import config as config_lib
from vit_jax.data.dataset import DataFacts
from vit_jax.errors import UsageError
from vit_jax.formats.weights import Weights
from vit_jax.models import create_model, model_fields
from vit_jax.models.variants import name_of, variant_fields

# Keys of the group that are told by other parts of the config.
_BY_DATA = ("name", "image_size", "channels")


def build_model(config: ConfigDict, facts: DataFacts, **more: Any) -> nn.Module:
    """The model of a config for data of these facts.

    Args:
      more: fields that no config has, such as `constrain`.

    Raises:
      UsageError: keys that contradict the data or one another, or that the named model has no field for.
    """
    height, width, channels = facts.image_shape
    asked = config.model.image_size
    if asked is not None and not isinstance(asked, int) and not _is_size(asked):
        raise UsageError(f"model.image_size is {asked!r}", "give one number of pixels, or (height, width)")
    asked = (asked, asked) if isinstance(asked, int) else asked
    if asked is not None and tuple(asked) != (height, width):
        raise UsageError(
            f"model.image_size is {asked[0]}x{asked[1]} but the preprocessing gives {height}x{width}",
            "make model.image_size and data.preprocess_train agree, or leave model.image_size out",
        )
    if config.model.channels not in (None, channels):
        raise UsageError(
            f"model.channels is {config.model.channels} but the preprocessing gives {channels}",
            "make the two agree, or leave model.channels out",
        )
    return create_model(
        config.model.name,
        num_classes=facts.num_classes,
        image_size=(height, width),
        channels=channels,
        **_fields(config),
        **more,
    )


def resolve(config: ConfigDict, facts: DataFacts, inferred: dict[str, Any]) -> None:
    """Fills every key of the model group, and num_classes, that isn't set: what a run stores leaves nothing open.

    Args:
      inferred: fields of the weights that the run starts from, or of the run that it continues, and `name`.

    Raises:
      UsageError: see build_model.
    """
    for name, default in config_lib.base_config().model.items():
        if default is None and name not in _BY_DATA and config.model[name] is None and name in inferred:
            config.model[name] = _plain(inferred[name])
    if not config.model.name:
        if "name" not in inferred:
            raise UsageError("model.name is empty", "name a model, or give init, whose weights tell it")
        config.model.name = inferred["name"]
    model = build_model(config, facts)
    for name, value in config.model.items():
        if value is None and hasattr(model, name):
            config.model[name] = _plain(getattr(model, name))
    config.model.image_size, config.num_classes = tuple(model.image_size), facts.num_classes


def given_fields(config: ConfigDict) -> dict[str, Any]:
    """The model fields that a config settles, for readers of weights: its own keys, and what the name says."""
    name = config.model.name
    fields = {**(variant_fields(name) if name else {}), **_structure(config)}
    if config.model.image_size is not None:
        fields["image_size"] = config.model.image_size
    return fields


def config_of(weights: Weights) -> ConfigDict:
    """A config for weights that come without one: images are squashed to the model's size.

    The normalisation is that of the layout, or what its config files say.
    """
    config = config_lib.base_config()
    config.model.name = name_of(weights.family, weights.fields)
    model = weights.model()
    for name in config.model:
        if name != "name" and hasattr(model, name) and config_lib.base_config().model[name] is None:
            config.model[name] = _plain(getattr(model, name))
    config.num_classes = weights.fields["num_classes"] or None
    height, width = model.image_size
    half = {*weights.mean, *weights.std} == {127.5}
    values = "value_range(-1, 1)" if half else f"vgg_value_range({weights.mean}, {weights.std})"
    config.data.preprocess_eval = f"decode({model.channels})|resize(({height}, {width}))|{values}"
    return config


def stored_fields(config: ConfigDict) -> dict[str, Any]:
    """The fields of the model of a run, from the config that it stored (see resolve)."""
    sizes = {"image_size": config.model.image_size, "channels": config.model.channels}
    return {
        **variant_fields(config.model.name),
        **_structure(config),
        **sizes,
        "num_classes": config.num_classes,
    }


def _structure(config: ConfigDict) -> dict[str, Any]:
    """The keys that say what the model is made of, not how it is trained: those that are None by default."""
    defaults = config_lib.base_config().model
    return {name: value for name, value in _fields(config).items() if defaults[name] is None}


def _fields(config: ConfigDict) -> dict[str, Any]:
    """The fields that the config sets. What isn't set (None) is as the model's name says, or its own default."""
    defaults = config_lib.base_config().model
    known = model_fields(config.model.name) if config.model.name else frozenset(defaults)
    fields = {}
    for field, value in config.model.items():
        if value is None or field in _BY_DATA:
            continue
        if field in known:
            fields[field] = value
        elif value and value != defaults[field]:  # rep_size=0 suits a model that has no such layer
            settable = sorted(known & set(config.model.keys()) - {"image_size"})
            raise UsageError(
                f"model.{field} is {value!r}, but {config.model.name} has no such field",
                f"leave it out; {config.model.name} has: {', '.join(settable)}",
            )
    return fields


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _is_size(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(isinstance(n, int) for n in value)
