"""Evaluates a run's checkpoint on its own split, or on other data with the same classes; prints one JSON line.

python -m vit_jax.evaluate --checkpoint=runs/quickstart
python -m vit_jax.evaluate --checkpoint=runs/quickstart@best --data='digits@test[:100]'
"""

import json
import sys
from collections.abc import Sequence

import jax

from vit_jax import cli, distributed, runs, workdir
from vit_jax import config as config_lib
from vit_jax import job as job_lib
from vit_jax.data.dataset import open_eval_data
from vit_jax.data.preprocess import with_range_of
from vit_jax.errors import UsageError
from vit_jax.evaluators.classification import Classification
from vit_jax.formats.adapt import place
from vit_jax.step import TrainState


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns its exit code.

    Raises:
      UsageError: refused before any work.
    """
    parser = cli.Parser("python -m vit_jax.evaluate", __doc__)
    parser.add_argument("--checkpoint", required=True, help="a run directory: RUN, RUN@STEP or RUN@best")
    parser.add_argument("--data", help="SOURCE[@SPLIT] to evaluate on; default: the run's own val and test")
    parser.add_argument("--preprocess", help="default: the run's data.preprocess_eval")
    parser.add_argument(
        "--subtree", choices=("params", "ema"), default="params", help="which parameters; default: params"
    )
    parsed = cli.parse(parser, argv, config_required=False)
    flags = parsed.flags
    reader, step = runs.open_run(flags.checkpoint)
    run = reader.folder.parent
    config = config_lib.from_dict(workdir.read_config(run))
    if parsed.config is not None:  # data, mesh and batch of the given config, the run's model
        config.data, config.eval, config.mesh = parsed.config.data, parsed.config.eval, parsed.config.mesh
    if flags.data is not None:
        config.data.val, config.data.test = "", flags.data
    if flags.preprocess is not None:
        config.data.preprocess_eval = with_range_of(config.data.preprocess_eval, flags.preprocess)

    distributed.initialize(
        init_timeout_s=config.distributed.init_timeout_seconds,
        heartbeat_timeout_s=config.distributed.heartbeat_seconds,
        shutdown_timeout_s=config.distributed.heartbeat_seconds,
    )
    data = open_eval_data(config.data, classes=workdir.read_classes(run), num_classes=config.num_classes)
    if not data.evals:
        raise UsageError("nothing to evaluate on", "give --data=SOURCE[@SPLIT]")
    job = job_lib.build_eval(config, data.facts())
    step, params = reader.restore_arrays(step, subtree=flags.subtree)
    params = place(params, job.abstract_params)
    with cli.work():
        eval_step = job.lower_eval_step().compile()
        results: dict[str, object] = {"checkpoint": flags.checkpoint, "step": step}
        for name in data.evals:
            batches = data.eval_batches(name, global_batch=job.eval_batch, sharding=job.batch_sharding)
            found = Classification(batches, eval_step).run(_state(params, step))
            results |= {f"eval/{name}/{metric}": value for metric, value in found.items()}
    if distributed.is_main():
        print(json.dumps(results), flush=True)
    distributed.shutdown()
    return distributed.EXIT_OK


def _state(params: object, step: int) -> TrainState:
    """A state with nothing but parameters, for the evaluators."""
    zero = jax.numpy.zeros((), jax.numpy.int32)
    return TrainState(step=zero + step, params=params, opt_state=(), skipped=zero, skipped_in_a_row=zero)


if __name__ == "__main__":
    cli.run(main, sys.argv[1:])
