"""Benchmarks, each beside a baseline in the same run.

    python -m vit_jax.bench step     forward pass and training step
    python -m vit_jax.bench input    reading, decoding and augmenting images

python -m vit_jax.bench step --help says more.
"""

import importlib
import sys
from collections.abc import Sequence

from vit_jax import cli
from vit_jax.errors import UsageError, known_names

# Name -> module with `main(argv) -> exit code`.
BENCHMARKS = {"step": "vit_jax.benchmarks.step", "input": "vit_jax.benchmarks.input"}


def main(argv: Sequence[str]) -> int:
    """Runs the benchmark named by the first word; returns the exit code.

    Raises:
      UsageError: no or an unknown name; what the benchmark refuses.
    """
    name, *rest = argv or [""]
    if name in ("-h", "--help"):
        print(__doc__.strip())
        return 0
    if name not in BENCHMARKS:
        what = f"unknown benchmark {name!r}" if name and not name.startswith("-") else "no benchmark named"
        raise UsageError(what, known_names(name, BENCHMARKS))
    return importlib.import_module(BENCHMARKS[name]).main(rest)


if __name__ == "__main__":
    cli.run(main, sys.argv[1:])
