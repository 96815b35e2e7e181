"""What one command is to do, settled before any work: weights, preprocessing, and a model that both suit."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from etils import epath
from ml_collections import ConfigDict

from vit_jax import config as config_lib
from vit_jax import job as job_lib
from vit_jax import model_config, start
from vit_jax.data import preprocess
from vit_jax.data.dataset import DataFacts
from vit_jax.data.preprocess import with_range_of
from vit_jax.data.vtab_tasks import TRAIN, Task
from vit_jax.errors import UsageError
from vit_jax.formats.weights import Weights
from vit_jax.loop import Outcome
from vit_jax.models.variants import name_of
from vit_jax.vtab1k import trials

_IMAGENET = "decode|normalize()"

Train = Callable[[ConfigDict, epath.Path], Outcome]
Notes = Callable[[], dict[str, Any]]  # what every result of a task says of its data


@dataclass(frozen=True)
class Plan:
    """A command, ready to go.

    Attributes:
      config: complete but for the data of a task; `init` is the checkpoint.
      workdir: of the whole table.
      data_dir: as given; "": tensorflow-datasets' folder.
      weights: of the checkpoint.
      train: trains a config in a folder, or goes on there.
    """

    config: ConfigDict
    workdir: epath.Path
    data_dir: str
    weights: Weights
    train: Train

    @property
    def normalization(self) -> str:
        """How pixels are scaled: published scores differ by it."""
        return normalization(self.config)


def normalization(config: ConfigDict) -> str:
    """The last step of the preprocessing, such as `value_range(-1, 1)`."""
    return config.data.preprocess_eval.rpartition("|")[2].strip()


def settle(config: ConfigDict, checkpoint: str, subtree: str | None) -> Weights:
    """Reads the checkpoint, and makes the config name it and its normalisation. In place.

    Raises:
      UsageError: no such weights, or a config for something else.
    """
    trials.check(config)
    if config.init and config.init != checkpoint:
        raise UsageError(f"init is {config.init!r}", f"leave it out: --checkpoint={checkpoint} says it")
    config.init, config.init_subtree = checkpoint, subtree or config.init_subtree
    weights = start.read_init(config)
    own = weights.preprocess or model_config.config_of(weights).data.preprocess_eval
    if all(map(np.allclose, preprocess.parse(own).normalize, preprocess.parse(_IMAGENET).normalize)):
        own = _IMAGENET  # in its short spelling
    for key in ("preprocess_train", "preprocess_eval"):
        program = preprocess.parse(with_range_of(own, config.data[key]))
        explicit = any(program.text.rpartition("|")[2].strip().startswith(name) for name in preprocess.RANGES)
        config.data[key] = program.text if explicit else f"{program.text}|value_range(-1, 1)"
    if preprocess.parse(config.data.preprocess_eval).random:
        raise UsageError(
            f"data.preprocess_eval {config.data.preprocess_eval!r} is random", "leave out its random steps"
        )
    return weights


def preflight(config: ConfigDict, weights: Weights, task: Task) -> ConfigDict:
    """Builds the job that a task takes, without its data and without compiling; its config, nothing left open.

    Raises:
      UsageError: whatever would refuse the run.
    """
    run = config_lib.from_dict(config_lib.to_dict(config))
    run.num_classes = task.num_classes
    facts = facts_of(run, task.num_classes)
    inferred = {**weights.fields, "name": name_of(weights.family, weights.fields)}
    model_config.resolve(run, facts, inferred)
    if run.vtab.method == "linear":
        job_lib.build_eval(run, facts)
    else:
        job_lib.build(run, facts)
    return run


def facts_of(config: ConfigDict, num_classes: int) -> DataFacts:
    """What the data of a task will be like."""
    program = preprocess.parse(config.data.preprocess_eval)
    size = program.output_size
    if size is None:
        raise UsageError(
            f"data.preprocess_eval {program.text!r} gives images of no fixed size", "end it in resize(SIZE)"
        )
    mean, std = program.normalize
    shape = (*size, program.channels)
    return DataFacts(TRAIN, num_classes, shape, (), tuple(map(float, mean)), tuple(map(float, std)))
