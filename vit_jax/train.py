"""Trains a ViT: from scratch, from another run, or on from where this run stopped.

    python -m vit_jax.train --config=configs/quickstart.py --workdir=runs/quickstart

The same command starts a run and continues it after a crash, a kill or a preemption (exit code 42: saved, start
it again). Overrides: --config.KEY=VALUE with the keys of configs/base.py.
"""

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from vit_jax import cli, distributed

_log = logging.getLogger(__name__)

# Keys that may differ from the stored config when a run goes on: they change where, how fast and how chattily it
# runs, not what it computes. total_* has a rule of its own (allow_total_change).
MAY_CHANGE_ON_RESUME = (
    "mesh.*", "fsdp_min_size", "distributed.*", "checkpoint.*", "eval.*", "log_*", "profile.*", "tensorboard",
    "watchdog_minutes", "compile_cache", "allow_*", "resume", "init",
    "data.num_threads", "data.num_workers", "data.prefetch_*",
)  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns its exit code: 0 done, 42 preempted and saved.

    Raises:
      UsageError: refused before any work.
      WorkFailed and others: failed later.
    """
    parser = cli.Parser("python -m vit_jax.train", __doc__)
    parser.add_argument("--workdir", required=True, help="folder of the run; created, or continued")
    parsed = cli.parse(parser, argv)
    config, workdir = parsed.config, Path(parsed.flags.workdir)

    # Imported late: nothing above needs jax, and a mistyped flag is answered at once.
    from vit_jax.timing import Buckets

    buckets = Buckets()
    distributed.initialize(
        init_timeout_s=config.distributed.init_timeout_seconds,
        heartbeat_timeout_s=config.distributed.heartbeat_seconds,
        shutdown_timeout_s=config.distributed.heartbeat_seconds,
    )
    from vit_jax import run

    code = run.train(config, workdir, command=["python", "-m", "vit_jax.train", *argv], buckets=buckets)
    distributed.shutdown()
    return code


if __name__ == "__main__":
    cli.run(main, sys.argv[1:])
