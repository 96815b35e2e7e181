"""What a prediction needs of a checkpoint, whatever kind of checkpoint it is."""

import logging
import os
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from jax.sharding import Mesh
from ml_collections import ConfigDict

from vit_jax import config as config_lib
from vit_jax import job as job_lib
from vit_jax import model_config, pretrained, runs, sharding, workdir
from vit_jax.data import preprocess as preprocess_lib
from vit_jax.data.dataset import DataFacts
from vit_jax.data.decode import BadImage
from vit_jax.data.preprocess import Preprocess
from vit_jax.data.tree import read_file
from vit_jax.errors import UsageError
from vit_jax.formats.adapt import adapt, place
from vit_jax.formats.weights import Weights
from vit_jax.models.check import size_of

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

    def row(self, image: str | os.PathLike | np.ndarray, name: str) -> np.ndarray | str:
        """A file or an array uint8 [H, W, C] or [H, W] as the model takes it, uint8; or why it can't be used."""
        program, shape = self.preprocess, self.facts.image_shape
        try:
            data = image if isinstance(image, np.ndarray) else read_file(os.fspath(image))
            if program.decode is None:  # trained on arrays
                data = program.load(data, name)
            row = program.host(data, None, name)
        except BadImage as e:
            return e.why
        if row.shape != shape:
            return (
                f"is {list(row.shape)} after {program.text!r}, the model takes {list(shape)}: "
                "give a preprocessing with a resize"
            )
        return row


def read(
    path: str,
    *,
    subtree: str | None,
    preprocess: str | None,
    batch_size: int | None,
    fields: dict[str, Any],
    headless: bool = False,
) -> Trained:
    """Reads a checkpoint for prediction. Nothing is compiled.

    Args:
      path: a run (`RUN`, `RUN@STEP`, `RUN@best`), or weights of any supported layout.
      subtree: "params" or "ema"; None: the parameters.
      preprocess: instead of the checkpoint's own. Weights without a run have none: images are then squashed to
        the size of the model, and normalised as the layout says.
      fields: of the model, where bare weights can't tell them.
      batch_size: rounded up to a row for every data shard; None: what evaluation uses.
      headless: a model without classes will do.

    Raises:
      UsageError: no such checkpoint or subtree, or a preprocessing that doesn't suit the model.
    """
    weights, config = open_checkpoint(path, subtree=subtree, fields=fields)
    own = config.data.preprocess_eval
    text = own if preprocess is None else preprocess_lib.with_range_of(own, preprocess)
    program = check_preprocess(text, weights, config)
    size, channels = config.model.image_size, config.model.channels
    if not weights.fields["num_classes"] and not headless:
        raise UsageError(f"{path} has no classes: it gives features", "fine-tune it first")
    mean, std = program.normalize
    if weights.layout != runs.LAYOUT:
        _log.info("%s: images are preprocessed by %s", path, program.text)
    facts = DataFacts(
        num_examples=0,
        num_classes=config.num_classes or 0,
        image_shape=(*size, channels),
        label_shape=(),
        mean=tuple(map(float, mean)),
        std=tuple(map(float, std)),
    )
    if batch_size is not None:
        config.eval.global_batch = batch_size
    devices = jax.local_devices()
    fit_mesh(config, devices)
    job = job_lib.build_eval(config, facts, devices)
    placed = place(adapt(weights, job.model), job.abstract_params)
    return Trained(job.model, placed, job.mesh, facts, weights.classes, program, config.loss, job.eval_batch)


def open_checkpoint(path: str, *, subtree: str | None, fields: dict[str, Any]) -> tuple[Weights, ConfigDict]:
    """The weights behind a path, and the run's config, or one made for bare weights (which names no data).

    `fields` may hold `image_size`: another one than the checkpoint's resizes its position table.

    Raises:
      UsageError: no such checkpoint or subtree.
    """
    weights = pretrained.read(path, hints=fields, subtree=subtree)
    resized = "image_size" in fields and size_of(fields["image_size"]) != size_of(
        weights.fields["image_size"]
    )
    if resized:
        weights = pretrained.adapted(weights, {"image_size": size_of(fields["image_size"])})
    if weights.layout != runs.LAYOUT:
        config = model_config.config_of(weights)
        config.data.train = config.data.val = config.data.test = ""
        return weights, config
    config = stored_config(path)
    if config.task == "masked_patch":  # what is left of such a run is an encoder, which gives features
        config.task, config.num_classes = "classify", None
    if resized:
        config.model.image_size = size_of(fields["image_size"])
    return weights, config


def check_preprocess(text: str, weights: Weights, config: ConfigDict) -> Preprocess:
    """The program of a preprocessing string for the images of a checkpoint.

    Raises:
      UsageError: it is random, or ends in another size than the model's.
    """
    program = preprocess_lib.parse(text)
    if program.random:
        raise UsageError(f"preprocessing {program.text!r} is random", "leave out its random steps")
    size, channels = config.model.image_size, config.model.channels
    given = program.size_after(None) or size
    if (*given, program.channels) != (*size, channels):
        raise UsageError(
            f"preprocessing {program.text!r} gives images {[*given, program.channels]}, "
            f"the model takes {[*size, channels]}",
            f"the run's own is {config.data.preprocess_eval!r}"
            if weights.layout == runs.LAYOUT
            else "end it in a resize or crop to that, or give --field=image_size=",
        )
    return program


def squashed(text: str, config: ConfigDict) -> str:
    """A preprocessing string that ends in the model's size: one that keeps its input's size gets a resize."""
    if preprocess_lib.parse(text).size_after(None) is not None:
        return text
    *steps, last = text.split("|")
    height, width = config.model.image_size
    kept, values = ([*steps], [last]) if preprocess_lib.ends_in_range(text) else ([*steps, last], [])
    return "|".join([*kept, f"resize(({height}, {width}))", *values])


def stored_config(path: str) -> ConfigDict:
    """The config of a run; the defaults for bare weights. Makes no jax call.

    Raises:
      UsageError: a run without checkpoints, or without that step.
    """
    if not runs.is_run(path):
        return config_lib.base_config()
    reader, _ = runs.open_run(path)
    return config_lib.from_dict(workdir.read_config(reader.folder.parent))


def fit_mesh(config: ConfigDict, devices: list[jax.Device]) -> None:
    """Keeps the run's mesh where it can be made of these devices; else each of them gets all parameters."""
    mesh = config.mesh
    try:
        sharding.make_mesh(mesh.replica, mesh.fsdp, mesh.tensor, devices)
    except UsageError as e:
        _log.info("%s: each of the %d devices here holds all parameters", e.what, len(devices))
        mesh.replica, mesh.fsdp, mesh.tensor = -1, 1, 1
