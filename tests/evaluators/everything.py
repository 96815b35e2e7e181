"""Every evaluator on one mesh of all processes' devices: prints its results as JSON, from process 0.

python -m tests.evaluators.everything BATCH CACHE_FOLDER
"""

import json
import sys

import numpy as np

from tests.evaluators.fakes import Lookup, NumberedSource, Scale, batches_of, lookup_step, state_of
from vit_jax import distributed, losses, sharding, step, workdir
from vit_jax.mixup import Mix


def results(mesh, batch, cache):
    """name -> result of each evaluator, of 103 training and 77 test examples."""
    import jax

    from vit_jax.evaluators.classification import Classification
    from vit_jax.evaluators.feature_cache import FeatureCache
    from vit_jax.evaluators.features import Extractor
    from vit_jax.evaluators.fewshot import FewShot
    from vit_jax.evaluators.knn import KNearest
    from vit_jax.evaluators.label_sets import LabelSets, Targets
    from vit_jax.evaluators.linear import LinearProbe
    from vit_jax.evaluators.multilabel import MultiLabel
    from vit_jax.evaluators.probes import Methods, Probe
    from vit_jax.tasks.classify import Classify

    rng = np.random.default_rng(0)
    labels, classes = rng.integers(0, 7, 103), tuple("abcdefg")
    table = rng.normal(size=(103, 7)).astype(np.float32)
    table[np.arange(103), labels] += 1
    several = (rng.random((77, 7)) < 0.3).astype(np.float32)
    train, test = NumberedSource(labels, classes), NumberedSource(labels[:77], classes)
    multi = NumberedSource(several, classes)
    state = state_of(table, mesh)
    loss = losses.make_loss("softmax_xent", label_smoothing=0.0)
    task = Classify(7, loss, loss, Mix(), 1, 0, Scale.mean, Scale.std)
    eval_step = jax.jit(
        lambda params, batch: step.eval_step(params, batch, model=Lookup(), task=task),
        out_shardings=sharding.replicated(mesh),
    )
    logits, sets = lookup_step(mesh), [tuple(np.flatnonzero(row)) for row in several]

    def passes(source):
        return batches_of(source, mesh, batch, 7)

    probe = Probe(
        Extractor(
            lookup_step(mesh, "pre_logits"), lambda source, k: batches_of(source, mesh, batch, k),
            cache=FeatureCache(cache), about={},
        ),
        train,
        test,
        Methods(
            FewShot((1, 5), 2, 2.0**10, (1.0, 2.0**10)),
            LinearProbe("lbfgs", (1e-2,), 200, 0.1, 1, 8),
            KNearest((1, 10), 0.07),
        ),
    )  # fmt: skip
    return {
        "classification": Classification(passes(test), eval_step).run(state),
        "label_sets": LabelSets(multi, passes(multi), logits, Targets(sets)).run(state),
        "subset": LabelSets(test, passes(test), logits, Targets([(0,)] * 77, np.array([0, 3]))).run(state),
        "multilabel": MultiLabel(multi, passes(multi), logits).run(state),
        "probe": probe.run(state),
        "probe from the cache": probe.run(state),
    }


if __name__ == "__main__":
    distributed.initialize(init_timeout_s=60, heartbeat_timeout_s=60, shutdown_timeout_s=60)
    found = results(sharding.make_mesh(-1, 1, 1), int(sys.argv[1]), sys.argv[2])
    if distributed.is_main():
        print(json.dumps(workdir.plain(found)), flush=True)
    distributed.shutdown()
