"""A task by a linear probe: logistic regression on frozen features, its strength chosen on V, then on T and V."""

import logging
from collections.abc import Callable
from time import monotonic
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from vit_jax import distributed, loop
from vit_jax import job as job_lib
from vit_jax.data import preprocess
from vit_jax.data.dataset import split_batches
from vit_jax.data.pipeline import BadImageLog
from vit_jax.data.source import Source
from vit_jax.data.source_vtab import Splits
from vit_jax.data.sources import open_source
from vit_jax.data.vtab_tasks import Task
from vit_jax.evaluation import about_features, linear_probe
from vit_jax.evaluators.feature_cache import FeatureCache
from vit_jax.evaluators.features import Batches, Extractor, Features
from vit_jax.formats.adapt import adapt, place
from vit_jax.vtab1k import trials
from vit_jax.vtab1k.plan import Notes, Plan, facts_of
from vit_jax.vtab1k.results import Result, Store

_log = logging.getLogger(__name__)

FEATURES = "features"  # of tasks that aren't through, in WORKDIR


class Prober:
    """The model of a command, compiled once for all tasks."""

    def __init__(self, plan: Plan, resolved: ConfigDict) -> None:
        """`resolved`: the config as `plan.preflight` gives it."""
        self._plan, config = plan, resolved
        job = job_lib.build_eval(config, facts_of(config, config.num_classes))
        program, bad_images = preprocess.parse(config.data.preprocess_eval), BadImageLog()

        def batches(source: Source, num_classes: int) -> Batches:
            return split_batches(
                source, program, config.data, bad_images=bad_images, num_classes=num_classes,
                global_batch=job.eval_batch, sharding=job.batch_sharding,
            )  # fmt: skip

        self._params = place(adapt(plan.weights, job.model), job.abstract_params)
        self._step, self._batches = job.features_step(config.features.representation), batches
        self._about = about_features(job.model, program.text, config.features.representation)

    def run_task(self, store: Store, task: Task, splits: Splits, notes: Notes) -> None:
        """Features, strength, accuracy; nothing if the result is there.

        Raises:
          Preempted: told to stop; the features of splits that are through are kept.
          NotFinite, DataError, UsageError: features that are no numbers, images that can't be read, ...
        """
        trial = trials.finals(self._plan.config, None)[0]
        folder = self._plan.workdir / FEATURES / task.name
        if not distributed.main_says(store.read(task.name, trial.name) is not None):
            _log.info("vtab %s: linear probe", task.name)
            began = monotonic()
            extract = Extractor(
                self._step, self._batches, on_batch=loop.poll, cache=FeatureCache(folder), about=self._about
            )
            found = self._probe(task, splits, extract)
            run = trials.trial_config(self._plan.config, task, splits, self._plan.data_dir, trial)
            about = {**trials.about(trial, run), **notes()}
            for key in ("lr", "schedule", "total_steps", "total_epochs", "total_examples"):
                about.pop(key)  # of training, which this isn't
            seconds = {"seconds_of_last_start": round(monotonic() - began, 1)}
            if distributed.is_main():
                store.write(task.name, trial.name, {**about, **found, **seconds})
        if not self._plan.config.vtab.keep_features and distributed.is_main():
            for path in folder.glob("*"):
                path.unlink()

    def _probe(self, task: Task, splits: Splits, extract: Callable[[Any, Source, int], Features]) -> Result:
        sources = {
            split: open_source(trials.spec(task, self._plan.data_dir, split), default_split=split)
            for split in (splits.t, splits.v, splits.e)
        }
        t, v, e = (extract(self._params, source, task.num_classes) for source in sources.values())
        probe = linear_probe(self._plan.config)
        by_l2 = {}
        for l2 in probe.l2s:
            loop.poll()
            by_l2[l2] = _share(probe.fit(t.rows, t.labels, task.num_classes, l2).scores(v.rows), v.labels)
        # Of equals the strongest, which presumes least.
        l2 = max(sorted(by_l2, reverse=True), key=by_l2.__getitem__)
        rows, labels = np.concatenate([t.rows, v.rows]), np.concatenate([t.labels, v.labels])
        model = probe.fit(rows, labels, task.num_classes, l2)
        hits = np.argmax(model.scores(e.rows), axis=1) == e.labels
        return {
            "accuracy": int(hits.sum()) / len(hits),
            "correct": int(hits.sum()),
            "count": len(hits),
            "l2": l2,
            "chosen_from": {f"l2={strength:g}": accuracy for strength, accuracy in by_l2.items()},
        }


def _share(scores: np.ndarray, labels: np.ndarray) -> float:
    return float(np.mean(np.argmax(scores, axis=1) == labels))
