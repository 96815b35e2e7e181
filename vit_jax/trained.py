"""What a prediction needs of a checkpoint, whatever kind of checkpoint it is."""

import logging
import math
from dataclasses import dataclass
from typing import Any

import jax
from flax import linen as nn
from jax.sharding import Mesh
from ml_collections import ConfigDict

from vit_jax import config as config_lib
from vit_jax import job as job_lib
from vit_jax import sharding, start, workdir
from vit_jax.data import preprocess as preprocess_lib
from vit_jax.data.dataset import DataFacts
from vit_jax.data.preprocess import Preprocess
from vit_jax.errors import UsageError

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Trained:
    """A model with its parameters, and how its images and its answers are meant.

    Attributes:
      model, params: on the mesh.
      facts: image shape, mean and std (those that `preprocess` says), number of classes K.
      classes: up to K names by index; None: not known.
      preprocess: of images before the model.
      loss: that it was trained with: softmax_xent (one class per image) or sigmoid_xent (any number).
      batch_size: rows of a compiled batch, a multiple of the data shards of the mesh.
    """

    model: nn.Module
    params: Any
    mesh: Mesh
    facts: DataFacts
    classes: tuple[str, ...] | None
    preprocess: Preprocess
    loss: str
    batch_size: int


def read(path: str, *, subtree: str, preprocess: str | None, batch_size: int | None) -> Trained:
    """Reads a checkpoint for prediction; every kind that there is belongs here. Nothing is compiled.

    Args:
      path: `RUN`, `RUN@STEP` or `RUN@best`. Weight files without a run are refused so far.
      subtree: "params" or "ema".
      preprocess: instead of the checkpoint's own.
      batch_size: rounded up to a row for every data shard; None: what evaluation uses.

    Raises:
      UsageError: no such checkpoint or subtree, or a preprocessing that doesn't suit the model.
    """
    return _read_run(path, subtree, preprocess, batch_size)


def _read_run(path: str, subtree: str, text: str | None, batch_size: int | None) -> Trained:
    reader, step = start.open_run(path)
    run = reader.folder.parent
    config = config_lib.from_dict(workdir.read_config(run))
    classes = workdir.read_classes(run)
    own = preprocess_lib.parse(config.data.preprocess_eval)
    program = own if text is None else preprocess_lib.parse(text)
    if program.random:
        raise UsageError(f"preprocessing {program.text!r} is random", "leave out its random steps")
    step, params = reader.restore_arrays(step, subtree=subtree)

    size = own.output_size or _size(config.model.image_size)
    size = size or _table_size(params, program.output_size) or program.output_size
    if size is None:
        raise UsageError(
            f"the size of the images of {path} can't be told", "give --preprocess, with a resize in it"
        )
    given = program.size_after(None) or size
    if (*given, program.channels) != (*size, own.channels):
        raise UsageError(
            f"preprocessing {program.text!r} gives images {[*given, program.channels]}, "
            f"the model takes {[*size, own.channels]}",
            f"the run's own is {own.text!r}",
        )
    mean, std = program.normalize
    facts = DataFacts(
        num_examples=0,
        num_classes=len(classes) if config.num_classes is None else config.num_classes,
        image_shape=(*size, own.channels),
        label_shape=(),
        mean=tuple(map(float, mean)),
        std=tuple(map(float, std)),
    )
    if batch_size is not None:
        config.eval.global_batch = batch_size
    devices = jax.local_devices()
    _fit_mesh(config, devices)
    job = job_lib.build_eval(config, facts, devices)
    placed = start.place(params, job.abstract_params)
    _log.info("%s of step %d of %s", subtree, step, run)
    return Trained(job.model, placed, job.mesh, facts, classes, program, config.loss, job.eval_batch)


def _size(asked: Any) -> tuple[int, int] | None:
    """A config's model.image_size as (height, width)."""
    return (asked, asked) if isinstance(asked, int) else asked and tuple(asked)


def _table_size(params: dict[str, Any], asked: tuple[int, int] | None) -> tuple[int, int] | None:
    """(height, width) that the position table is for: `asked` if it may be, else of square images, else None."""
    if "posemb" not in params or "patch_embed" not in params:
        return None
    rows = params["posemb"].shape[1]
    height, width = params["patch_embed"]["kernel"].shape[:2]
    counts = [n for n in (rows, rows - 1) if n > 0]  # the class token may have a row of its own
    if asked and (asked[0] // height) * (asked[1] // width) in counts:
        return asked
    sides = [math.isqrt(n) for n in counts if math.isqrt(n) ** 2 == n]
    return (sides[0] * height, sides[0] * width) if sides else None


def _fit_mesh(config: ConfigDict, devices: list[jax.Device]) -> None:
    """Keeps the run's mesh where it can be made of these devices; else each of them gets all parameters."""
    mesh = config.mesh
    try:
        sharding.make_mesh(mesh.replica, mesh.fsdp, mesh.tensor, devices)
    except UsageError as e:
        _log.info("%s: each of the %d devices here holds all parameters", e.what, len(devices))
        mesh.replica, mesh.fsdp, mesh.tensor = -1, 1, 1
