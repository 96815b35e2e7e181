"""A run directory as a source of weights: its newest intact step, a step by number, or the best."""

from typing import Any

from etils import epath

from vit_jax import config as config_lib
from vit_jax import files, model_config, workdir
from vit_jax.checkpoint_reader import Reader
from vit_jax.data import preprocess
from vit_jax.errors import UsageError
from vit_jax.formats.weights import Weights, complete
from vit_jax.models.stack import unstack_layers
from vit_jax.models.variants import model_family
from vit_jax.tasks.masked_patch import OWN_PARAMS

LAYOUT = "run"
# What a run directory has beside config.json, and a folder of Hugging Face hasn't.
_MARKS = ("run.json", "checkpoints", "best")


def is_run(spec: str) -> bool:
    """Whether `spec` is a run directory, with or without @STEP."""
    if files.is_remote(spec) and not files.keeps_runs(spec):
        return False
    folder = _split(spec)[0]
    return (folder / "config.json").is_file() and any((folder / name).exists() for name in _MARKS)


def _split(spec: str) -> tuple[epath.Path, str]:
    """The folder, and what follows the last @, if it isn't part of the folder's name."""
    whole = files.run_folder(spec)
    if "@" not in spec or whole.is_dir():
        return whole, ""
    folder, _, which = spec.rpartition("@")
    return files.run_folder(folder), which


def open_run(spec: str) -> tuple[Reader, int | None]:
    """Opens the checkpoints of `RUN`, `RUN@STEP` or `RUN@best` for reading.

    Returns:
      The reader, and the step asked for; None for `RUN`, the newest intact one.

    Raises:
      UsageError: no such run, or no such step.
    """
    run, which = _split(spec)
    if not run.is_dir():
        kind = "it is a file" if run.is_file() else "no such folder"
        raise UsageError(
            f"{str(run)!r} is no run directory: {kind}", "give the --workdir of a run that has saved"
        )
    reader = Reader(run / ("best" if which == "best" else "checkpoints"))
    steps = reader.steps()
    if not steps:
        raise UsageError(f"no checkpoint in {reader.folder}", "give the --workdir of a run that has saved")
    if which in ("", "best"):
        return reader, None
    if not which.isdecimal() or int(which) not in steps:
        listed = ", ".join(map(str, steps))
        raise UsageError(f"no step {which!r} in {reader.folder}", f"steps: {listed}; or @best")
    return reader, int(which)


def read_stored(spec: str, subtree: str | None) -> tuple[int, Any, tuple[str, ...]]:
    """All parameters of `RUN`, `RUN@STEP` or `RUN@best` as they were trained: step, numpy arrays, class names.

    Raises:
      UsageError: as for `read_run`.
    """
    reader, step = open_run(spec)
    step, params = reader.restore_arrays(step, subtree=subtree or "params")
    return step, params, workdir.read_classes(reader.folder.parent)


def read_run(spec: str, subtree: str | None, hints: dict[str, Any] | None = None) -> Weights:
    """The parameters of `RUN`, `RUN@STEP` or `RUN@best`, and the model that the stored config describes.

    Args:
      subtree: "params" or "ema"; None: the parameters.
      hints: model fields, which must agree with the run's save those that loading can change.

    Raises:
      UsageError: no such run, step or subtree, or nothing intact.
    """
    if subtree not in (None, "params", "ema"):
        raise UsageError(
            f"{spec} has no subtree {subtree!r}", "a run has params, and ema if it keeps an average"
        )
    reader, step = open_run(spec)
    run = reader.folder.parent
    config = config_lib.from_dict(workdir.read_config(run))
    step, params = reader.restore_arrays(step, subtree=subtree or "params")
    family = model_family(config.model.name)
    if family == "vit":
        params = unstack_layers(params)
    mean, std = preprocess.parse(config.data.preprocess_eval).normalize
    notes = [f"{subtree or 'params'} of step {step} of {run}"]
    if subtree is None and config.ema_decay is not None:
        notes.append(f"{run} also has the average of its parameters: subtree ema")
    fields, classes = model_config.stored_fields(config), workdir.read_classes(run)
    if config.task == "masked_patch":
        params = {name: value for name, value in params.items() if name not in OWN_PARAMS}
        fields, classes = fields | {"num_classes": 0}, None
        notes.append(
            f"{run} learned to predict hidden patches: "
            "as weights it is an encoder, without mask token and prediction head"
        )
    return Weights(
        layout=LAYOUT,
        origin=spec,
        family=family,
        fields=complete(hints or {}, fields, spec),
        params=params,
        resize="zoom",
        mean=tuple(map(float, mean)),
        std=tuple(map(float, std)),
        classes=classes,
        loss=config.loss,
        preprocess=config.data.preprocess_eval,
        step=step,
        notes=tuple(notes),
    )
