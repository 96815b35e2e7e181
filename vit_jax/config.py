"""Loading configurations: a file or a shipped name, an argument, overrides from the command line."""

import importlib.util
import inspect
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from vit_jax.errors import UsageError, known_names

DURATION_UNITS = ("steps", "epochs", "examples")

_PACKAGE = Path(__file__).parent


def shipped_configs() -> Path:
    """Folder of the configs that come with the project: beside the package in a clone, inside it in a wheel."""
    inside = _PACKAGE / "configs"
    return inside if inside.is_dir() else _PACKAGE.parent / "configs"


def config_names() -> list[str]:
    """Names of the shipped configs, those of subfolders too: `quickstart`, `tiny/data_size`, ..."""
    folder = shipped_configs()
    return sorted(p.relative_to(folder).with_suffix("").as_posix() for p in folder.rglob("[!_]*.py"))


def base_config() -> ConfigDict:
    """A fresh copy of `configs/base.py`: every key with its default, locked."""
    return _run_file(shipped_configs() / "base.py", None)


def load(spec: str) -> ConfigDict:
    """Loads `PATH[:ARG]` or `NAME[:ARG]` of a shipped config, without overrides.

    Raises:
      UsageError: no such file or name, a file without get_config, an argument that it doesn't take, or a
        config that has keys which configs/base.py lacks.
    """
    name, colon, arg = _split_spec(spec)
    return _run_file(_find(name), arg if colon else None)


def _split_spec(spec: str) -> tuple[str, str, str]:
    """Splits at the first colon after `.py`, else at the first colon."""
    before, py, after = spec.partition(".py")
    if py and (not after or after[0] == ":"):
        return before + py, after[:1], after[1:]
    return spec.partition(":")


def _find(name: str) -> Path:
    shipped = config_names()
    if name.endswith(".py"):
        path = Path(name)
        if path.is_file():
            return path
        # `configs/quickstart.py` and `configs/tiny/data_size.py` work from any directory.
        *_, tail = path.as_posix().rpartition("configs/")
        if tail != path.as_posix() and tail.removesuffix(".py") in shipped:
            return shipped_configs() / tail
        raise UsageError(f"no config file {name!r}", "shipped ones: " + ", ".join(shipped))
    if name not in shipped:
        raise UsageError(f"no shipped config {name!r}", known_names(name, shipped) + ", or give a path.py")
    return shipped_configs() / f"{name}.py"


def _run_file(path: Path, arg: str | None) -> ConfigDict:
    module_spec = importlib.util.spec_from_file_location(f"vit_jax_config_{path.stem}", path)
    module = importlib.util.module_from_spec(module_spec)
    try:
        module_spec.loader.exec_module(module)
        get_config = module.get_config
    except UsageError:
        raise
    except Exception as e:
        raise UsageError(
            f"config file {path} can't be loaded: {type(e).__name__}: {e}", "mend the file"
        ) from e
    takes_arg = bool(inspect.signature(get_config).parameters)
    if arg is not None and not takes_arg:
        raise UsageError(f"config {path.name} takes no argument, got {arg!r}", f"leave out ':{arg}'")
    try:
        config = get_config() if arg is None else get_config(arg)
    except UsageError:
        raise
    except (AttributeError, KeyError) as e:  # a locked ConfigDict refuses unknown keys this way
        raise UsageError(f"config file {path}: {str(e).strip()}", "configs/base.py has every key") from e
    except (TypeError, ValueError) as e:
        raise UsageError(f"config file {path}: {e}", "configs/base.py has every key and its type") from e
    return config.lock()


def parse_argument(arg: str, defaults: Mapping[str, str], *, positional: str) -> dict[str, str]:
    """Parses a config argument such as `B/16,aug=medium1`: one positional value and `key=value` pairs.

    Raises:
      UsageError: an unknown key, or two positional values.
    """
    values = dict(defaults)
    seen: set[str] = set()
    for part in filter(None, (p.strip() for p in arg.split(","))):
        key, equals, value = part.partition("=")
        if not equals:
            key, value = positional, part
        if key not in values:
            raise UsageError(f"unknown config argument {key!r}", known_names(key, values))
        if key in seen:
            raise UsageError(f"config argument {key!r} is given twice", "give it once")
        seen.add(key)
        values[key] = value
    return values


def one_of(value: str, known: Iterable[str], what: str) -> str:
    """The value of a config argument, which must be one of some words.

    Raises:
      UsageError: it isn't.
    """
    if value not in known:
        raise UsageError(f"{what} is {value!r}", known_names(value, known))
    return value


def keys(config: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """All dotted keys of the leaves."""
    for name, value in config.items():
        if isinstance(value, Mapping | ConfigDict):
            yield from keys(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def check_key(config: ConfigDict, dotted: str) -> None:
    """Raises UsageError, naming the nearest known key, unless `dotted` is a leaf of the config."""
    known = list(keys(config))
    if dotted in known:
        return
    inside = [k for k in known if k.startswith(dotted + ".")]
    if inside:
        raise UsageError(f"config key {dotted!r} is a group", "set one of " + ", ".join(inside))
    raise UsageError(f"unknown config key {dotted!r}", known_names(dotted, known))


def clear_other_units(config: ConfigDict, overridden: Iterable[str]) -> None:
    """Unsets `total_epochs` where `total_steps` was given on the command line, and so for every duration."""
    overridden = set(overridden)
    for dotted in overridden:
        stem, _, unit = dotted.rpartition("_")
        if unit not in DURATION_UNITS or dotted not in set(keys(config)):
            continue
        for other in DURATION_UNITS:
            sibling = f"{stem}_{other}"
            if sibling not in overridden and sibling in set(keys(config)):
                unset(config, sibling)


def unset(config: ConfigDict, dotted: str) -> None:
    """Sets a key to None.

    Raises:
      UsageError: the key has no such value: its default in base.py isn't None.
    """
    group, _, leaf = dotted.rpartition(".")
    target, default = config, base_config()
    for name in filter(None, group.split(".")):
        target, default = target[name], default[name]
    if default[leaf] is not None:
        raise UsageError(f"config key {dotted!r} can't be None", f"base.py says {default[leaf]!r}")
    target[leaf] = None


def to_dict(config: ConfigDict) -> dict[str, Any]:
    """A plain nested dict that JSON can hold; tuples become lists."""
    return json.loads(json.dumps(config.to_dict(), allow_nan=False))


def from_dict(values: Mapping[str, Any]) -> ConfigDict:
    """The config stored in a run's config.json: base.py's keys with the stored values; lists become tuples.

    Keys that base.py has gained since keep their default.

    Raises:
      UsageError: a stored key that base.py no longer has.
    """
    config = base_config()
    _update(config, values, "")
    return config


def _update(config: ConfigDict, values: Mapping[str, Any], prefix: str) -> None:
    for name, value in values.items():
        if name not in config:
            raise UsageError(
                f"stored config key {prefix + name!r} is unknown", known_names(prefix + name, keys(config))
            )
        if isinstance(value, Mapping):
            _update(config[name], value, f"{prefix}{name}.")
        else:
            config[name] = _tuples(value)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


# Smallest and largest value of the keys that have one; a key that is unset (None) passes.
_ENDLESS = float("inf")
RANGES = {
    "seed": (0, 2**32 - 1),  # jax keeps 32 bits: 2**40 would act as 0
    "global_batch": (1, _ENDLESS),
    "accum_steps": (1, _ENDLESS),
    "total_steps": (0, 2**31 - 1),  # steps are counted in int32
    "num_classes": (1, _ENDLESS),
    "mixup_alpha": (0, _ENDLESS),
    "cutmix_alpha": (0, _ENDLESS),
    "cutmix_prob": (0, 1),
    "mixup_shard_examples": (2, _ENDLESS),
    "nonfinite_limit": (1, _ENDLESS),
    "fsdp_min_size": (0, _ENDLESS),
    "watchdog_minutes": (0, _ENDLESS),
    "data.train_examples": (1, _ENDLESS),
    "data.repeats": (1, _ENDLESS),
    "data.num_threads": (0, 1024),
    "data.num_workers": (0, 1024),
    "data.prefetch_examples": (1, _ENDLESS),
    "data.prefetch_batches": (1, _ENDLESS),
    "distributed.heartbeat_seconds": (1, _ENDLESS),
    "distributed.init_timeout_seconds": (1, _ENDLESS),
    "checkpoint.keep": (1, _ENDLESS),
    "early_stop.patience": (1, _ENDLESS),
    "checkpoint.keep_every_steps": (1, _ENDLESS),
    "checkpoint.every_minutes": (0, _ENDLESS),
    "eval.global_batch": (1, _ENDLESS),
    "fewshot.seeds": (1, 1000),
    "vtab.seeds": (1, 1000),
    "profile.start_step": (0, _ENDLESS),
    "profile.num_steps": (1, _ENDLESS),
}


def check_ranges(config: ConfigDict) -> None:
    """Raises UsageError for a number outside its range."""
    for dotted, (low, high) in RANGES.items():
        value: Any = config
        for name in dotted.split("."):
            value = value[name]
        if value is not None and not low <= value <= high:
            allowed = f"at least {low}" if high == _ENDLESS else f"{low} to {high}"
            raise UsageError(f"{dotted} is {value}", f"give {allowed}")


def check_finite(config: ConfigDict) -> None:
    """Raises UsageError for a NaN or infinite number anywhere: they can't be stored, and never help."""
    for dotted in keys(config):
        value: Any = config
        for name in dotted.split("."):
            value = value[name]
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"config key {dotted!r} is {value}", "give a finite number")
