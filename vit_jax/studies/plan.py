"""What a study is made of: experiments, their runs, and the order in which they are trained."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from etils import epath
from ml_collections import ConfigDict

from vit_jax import config as config_lib


@dataclass(frozen=True)
class Run:
    """One setting of an experiment.

    Attributes:
      name: of its folder, and in the table.
      spec: of the config, with its argument; {folder}, {experiment} (the folder of its experiment) and {seed} are
        filled in.
      x: place on the axis of a curve; None: the experiment has none.
      series: line of the curve that it belongs to.
      own_length: as long as the config says, instead of the experiment's steps.
      shown: False for a run that others only start from.
    """

    name: str
    spec: str
    x: float | None = None
    series: str = ""
    own_length: bool = False
    shown: bool = True


@dataclass(frozen=True)
class Experiment:
    """Runs that are compared.

    Attributes:
      name: of its folder.
      title: of its figure.
      paper: what the paper found, and where.
      runs: in the order in which they are trained.
      seeds: so many runs of each, with seeds 0, 1, ...
      steps: of every run; the first tenth is warm-up.
      metric: what is compared, a share.
      chosen_by: metric whose best value (of a loss the least) chooses the evaluation that counts; "": the last.
      x_label: of a curve's axis.
    """

    name: str
    title: str
    paper: str
    runs: tuple[Run, ...]
    seeds: int
    steps: int
    metric: str = "eval/test/accuracy"
    chosen_by: str = ""
    x_label: str = ""


class Cell(NamedTuple):
    """One training run."""

    experiment: Experiment
    run: Run
    seed: int

    @property
    def name(self) -> str:
        """Of its folder in the workdir: `posemb/none/0`."""
        return f"{self.experiment.name}/{self.run.name}/{self.seed}"


def cells(experiments: Sequence[Experiment], seeds: int | None = None) -> Iterator[Cell]:
    """All runs, those of the first seed first: a study that is broken off has something of everything.

    Args:
      seeds: in place of every experiment's own number.
    """
    counts = {experiment.name: experiment.seeds if seeds is None else seeds for experiment in experiments}
    for seed in range(max(counts.values(), default=0)):
        for experiment in experiments:
            if seed < counts[experiment.name]:
                yield from (Cell(experiment, run, seed) for run in experiment.runs)


def config_of(cell: Cell, *, folder: str, workdir: epath.Path, steps: int | None = None) -> ConfigDict:
    """The config of a run.

    Args:
      folder: of images, with `train` and `validation`.
      steps: in place of the length of every run.

    Raises:
      UsageError: the config refuses its argument.
    """
    experiment, run, seed = cell
    config = config_lib.load(run.spec.format(folder=folder, experiment=workdir / experiment.name, seed=seed))
    config.seed = seed
    config.tensorboard = False
    config.features.data = ()  # a number of one classifier each is what is compared
    if steps is None and not run.own_length:
        steps = experiment.steps
    if steps is not None:
        config.total_steps, config.warmup_steps = steps, steps // 10
        config_lib.clear_other_units(config, ("total_steps", "warmup_steps"))
    return config
