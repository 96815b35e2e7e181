"""The evaluators that a configuration asks for, their data open; `train` and `evaluate` run the same ones."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from flax import linen as nn
from ml_collections import ConfigDict

from vit_jax.data import preprocess, sources
from vit_jax.data.dataset import EVAL_SPLITS, EvalData, full_spec, split_batches
from vit_jax.data.pipeline import BadImageLog
from vit_jax.errors import UsageError, known_names
from vit_jax.evaluators import imagenet
from vit_jax.evaluators.classification import MAX_CONFUSION, Classification
from vit_jax.evaluators.feature_cache import FeatureCache
from vit_jax.evaluators.features import Batches, Extractor
from vit_jax.evaluators.fewshot import FewShot
from vit_jax.evaluators.hidden_patches import HiddenPatches
from vit_jax.evaluators.knn import KNearest
from vit_jax.evaluators.label_sets import LabelSets, Targets
from vit_jax.evaluators.linear import LinearProbe
from vit_jax.evaluators.multilabel import MultiLabel
from vit_jax.evaluators.probes import Methods, Probe
from vit_jax.job import EvalJob, in_steps
from vit_jax.models.features import check_representation
from vit_jax.step import TrainState

METHODS = ("fewshot", "linear", "knn")
_IMAGENET = ("real", "v2", "a", "r", "objectnet")


class Evaluator(Protocol):
    """Measures a state; `state.params` counts."""

    def run(self, state: TrainState) -> dict[str, float]: ...


@dataclass(frozen=True)
class Evaluators:
    """What is evaluated: by name, and how often.

    Attributes:
      by_name: name -> evaluator of eval/<name>/...
      every: name -> steps between two evaluations; None: the final one alone.
    """

    by_name: dict[str, Evaluator]
    every: dict[str, int | None]

    def due(self, step: int) -> list[str]:
        """Names of those to run after so many steps."""
        return [name for name, every in self.every.items() if every and step % every == 0]


@dataclass(frozen=True)
class Extra:
    """The data of the evaluators besides those of data.val and data.test, open.

    Attributes:
      probes: name -> training and test split.
      sets: name of `imagenet` -> split and what counts as right.
    """

    probes: dict[str, tuple[sources.Source, sources.Source]]
    sets: dict[str, tuple[sources.Source, Targets]]
    methods: Methods

    def __bool__(self) -> bool:
        return bool(self.probes or self.sets)

    @property
    def test_splits(self) -> dict[str, sources.Source]:
        """Name -> what is tested on."""
        return {name: pair[1] for name, pair in self.probes.items()} | {
            name: pair[0] for name, pair in self.sets.items()
        }


def open_extra(job: EvalJob, *, own: tuple[str, str], classes: Sequence[str] | None) -> Extra:
    """Opens the data of `features.data` and `imagenet`.

    Args:
      job: its config says what, its model is what the data must suit.
      own: SOURCE of training and test split, where `features.data` names none.
      classes: of the classifier, by logit; None: not known.

    Raises:
      UsageError: missing data, keys that don't go together, or features that the model hasn't.
    """
    config = job.config
    if config.features.data:
        check_representation(job.model, config.features.representation)
    program = preprocess.parse(config.data.preprocess_eval)
    if program.random:
        raise UsageError(f"preprocessing {program.text!r} is random", "leave out its random steps")
    probes: dict[str, tuple[sources.Source, sources.Source]] = {}
    for entry in config.features.data:
        if len(entry) != 4 or not all(isinstance(word, str) for word in entry):
            raise UsageError(f"features.data has {entry!r}", "write (name, SOURCE, train split, test split)")
        name, spec, train, test = entry
        if name in probes or name in (*EVAL_SPLITS, *_IMAGENET) or not name:
            raise UsageError(f"features.data: the name {name!r} is taken", "give each entry its own")
        probes[name] = _pair(name, spec, train, test, own)
    methods = _methods(config)
    sets = _imagenet_sets(config, classes, 0 if job.hides_patches else job.facts.num_classes)
    return Extra(probes, sets, methods)


def _pair(
    name: str, spec: str, train: str, test: str, own: tuple[str, str]
) -> tuple[sources.Source, sources.Source]:
    """The two splits of an entry; classes come from the training split."""
    if not spec and not all(own):
        raise UsageError(f"features.data: {name!r} has no SOURCE, and there is no run's own data", "name one")
    train_spec = own[0] if not spec else f"{spec}@{train or 'train'}"
    test_spec = full_spec(own[1], own[0]) if not spec else f"{spec}@{test or 'test'}"
    first = sources.open_source(train_spec, default_split="train")
    return first, sources.open_source(test_spec, default_split="test", classes=first.classes)


def _methods(config: ConfigDict) -> Methods:
    for name in config.features.methods:
        if name not in METHODS:
            raise UsageError(f"features.methods has {name!r}", known_names(name, METHODS))
    if config.features.data and not config.features.methods:
        raise UsageError("features.methods is empty", "name some of " + ", ".join(METHODS))
    fewshot, knn = config.fewshot, config.knn
    made = {
        "fewshot": lambda: FewShot(
            tuple(fewshot.shots), fewshot.seeds, float(fewshot.l2), tuple(map(float, fewshot.l2_sweep))
        ),
        "linear": lambda: linear_probe(config),
        "knn": lambda: KNearest(tuple(knn.k), float(knn.temperature)),
    }  # fmt: skip
    return Methods(**{name: made[name]() for name in config.features.methods})


def linear_probe(config: ConfigDict) -> LinearProbe:
    """The probe that `config.linear` describes."""
    linear = config.linear
    return LinearProbe(
        linear.solver, tuple(map(float, linear.l2)), linear.max_steps, float(linear.lr), linear.epochs,
        linear.batch_size, config.seed,
    )  # fmt: skip


def _imagenet_sets(
    config: ConfigDict, classes: Sequence[str] | None, num_classes: int
) -> dict[str, tuple[sources.Source, Targets]]:
    group = config.imagenet
    wanted = [name for name in _IMAGENET if group[name]]
    if wanted and not num_classes:
        raise UsageError(f"imagenet.{wanted[0]}: the checkpoint has no classes", "fine-tune it first")
    found = {}
    for name in wanted:
        default = "validation" if name == "real" else "test"
        source = sources.open_source(group[name], default_split=default)
        if name == "real":
            order = imagenet.standard_order(classes, num_classes)
            targets = imagenet.real(source, group.real_labels, order)
        elif name == "v2":
            targets = imagenet.numbered(source, imagenet.standard_order(classes, num_classes))
        elif name == "objectnet":
            targets = imagenet.mapped(source, group.objectnet_classes, classes, num_classes)
        else:
            targets = imagenet.subset(source, classes)
        found[name] = (source, targets)
    return found


def build(
    job: EvalJob,
    data: EvalData,
    extra: Extra,
    *,
    on_batch: Callable[[], None] = lambda: None,
    final_only: bool = False,
    details: bool = False,
) -> Evaluators:
    """The evaluators of a job. Compiles the evaluation step.

    Args:
      data: the splits of data.val and data.test.
      extra: see `open_extra`.
      on_batch: called before every batch of all of them.
      final_only: once, whatever the intervals: nothing is asked of a training run's length. Features are then
        kept in `features.cache`.
      details: confusions are counted too.
    """
    config = job.config
    by_name: dict[str, Evaluator] = {}
    if data.evals:
        confusion = {"confusion": details and job.facts.num_classes <= MAX_CONFUSION}
        eval_step = job.lower_eval_step(**({} if job.hides_patches else confusion)).compile()
    for name, source in data.evals.items():
        batches = data.eval_batches(name, global_batch=job.eval_batch, sharding=job.batch_sharding)
        if job.hides_patches:
            by_name[name] = HiddenPatches(batches, eval_step, on_batch)
            continue
        by_name[name] = Classification(batches, eval_step, on_batch)
        if job.facts.label_shape and config.eval.average_precision:
            multi = MultiLabel(source, batches, job.features_step("logits"), on_batch)
            by_name[name] = _Both(by_name[name], multi)
    program, bad_images = preprocess.parse(config.data.preprocess_eval), BadImageLog()

    def batches_of(source: sources.Source, num_classes: int) -> Batches:
        return split_batches(
            source, program, config.data, bad_images=bad_images, num_classes=num_classes,
            global_batch=job.eval_batch, sharding=job.batch_sharding,
        )  # fmt: skip

    if extra.probes:
        kept = final_only and config.features.cache
        extractor = Extractor(
            job.features_step(config.features.representation),
            batches_of,
            on_batch=on_batch,
            cache=FeatureCache(config.features.cache) if kept else None,
            about=about_features(job.model, program.text, config.features.representation),
        )
        for name, (train, test) in extra.probes.items():
            by_name[name] = Probe(extractor, train, test, extra.methods)
    if extra.sets:
        logits_step = job.features_step("logits")
        for name, (source, targets) in extra.sets.items():
            batches = batches_of(source, len(source.classes))
            by_name[name] = LabelSets(source, batches, logits_step, targets, on_batch)
    return Evaluators(by_name, dict.fromkeys(by_name) if final_only else _intervals(job, by_name, extra))


def _intervals(job: EvalJob, names: dict[str, Evaluator], extra: Extra) -> dict[str, int | None]:
    config, facts = job.config, job.facts
    every = in_steps(config, facts, config.eval, "every", "eval.")
    own = in_steps(config, facts, config.features, "every", "features.") or every
    return {name: own if name in extra.probes else every for name in names}


def about_features(model: nn.Module, text: str, representation: str) -> dict[str, str]:
    """All that features depend on besides parameters and data."""
    fields = {
        field.name: str(getattr(model, field.name))
        for field in dataclasses.fields(model)
        if field.name not in ("constrain", "parent", "name")
    }
    return {"preprocess": text, "representation": representation, "model": type(model).__name__, **fields}


@dataclass(frozen=True)
class _Both:
    """Classification of label vectors, and average precision beside it."""

    first: Classification
    second: MultiLabel

    @property
    def details(self) -> dict:
        return self.first.details

    def run(self, state: TrainState) -> dict[str, float]:
        found = self.first.run(state)
        return found | {k: v for k, v in self.second.run(state).items() if k not in found}
