"""Launchers: the same command on every process of a machine, a TPU slice, a GKE cluster or a SLURM job.

    python -m launch.local|tpu_vm|gke|slurm … -- COMMAND …        from a clone
    vit-jax launch local|tpu_vm|gke|slurm … -- COMMAND …          installed

Standard library only, and nothing of vit_jax: a laptop that starts jobs needs no jax. Each launcher is a pure
function from a description to argument lists, a manifest or a script; `--dry-run` prints what would be run.
"""

import importlib
from collections.abc import Sequence

# Name -> what it starts on.
LAUNCHERS = {
    "local": "several processes on this machine",
    "tpu_vm": "TPU slices as queued resources",
    "gke": "TPU slices or GPU machines of a GKE cluster",
    "slurm": "GPU machines under SLURM",
}


def main(argv: Sequence[str]) -> int:
    """`vit-jax launch LAUNCHER …`; returns the exit code."""
    from .command import Refused, known_names, run

    if not argv or argv[0] in ("-h", "--help"):
        print(f"usage: vit-jax launch LAUNCHER … -- COMMAND …\n\n{__doc__}")
        for name, what in LAUNCHERS.items():
            print(f"{name:8} {what}")
        return 0
    name, *rest = argv

    def dispatch(words: Sequence[str]) -> int:
        if name not in LAUNCHERS:
            raise Refused(f"unknown launcher {name!r}", known_names(name, LAUNCHERS))
        return importlib.import_module(f".{name}", __name__).main(words)

    return run(dispatch, rest)
