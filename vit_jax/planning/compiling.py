"""Compiles the training step for devices that may not be there: does it fit, and what program comes out."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import jax
from jax.experimental.compilation_cache import compilation_cache

from vit_jax import sharding
from vit_jax.errors import RunFailed
from vit_jax.job import Job

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# The compiler gives up on the whole, or on the temporaries alone.
_USED = re.compile(r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm")
_TEMPORARIES = re.compile(r"temporaries \(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)")


@dataclass(frozen=True)
class Compiled:
    """What the compiler says; bytes are those of one device.

    Attributes:
      argument_bytes, temp_bytes, peak_bytes: peak is arguments, temporaries, outputs that reuse no argument, and
        the program. Of a program that doesn't fit temp_bytes may be unknown.
      text: of the program; "" of one that doesn't fit.
      reason: why it doesn't fit; "" if it does.
    """

    argument_bytes: int | None
    temp_bytes: int | None
    peak_bytes: int
    text: str
    reason: str


def compile_step(job: Job, options: Mapping[str, str], limit: int | None) -> Compiled:
    """Compiles the step that `train` would run.

    Args:
      options: of the compiler.
      limit: bytes of HBM that a program may use; None: unknown.

    Raises:
      RunFailed: the compiler fails for another reason than memory.
    """
    try:
        with _no_stored_programs():
            compiled = job.lower_train_step().compile(compiler_options=dict(options))
    except jax.errors.JaxRuntimeError as error:
        message = str(error)
        used, temporaries = _USED.search(message), _TEMPORARIES.search(message)
        if used is None and temporaries is None:
            raise RunFailed(f"the compiler fails: {message.strip()}") from error
        match = used or temporaries
        size, available = (int(float(match[i]) * _UNITS[match[i + 1]]) for i in (1, 3))
        arguments = _argument_bytes(job)
        temp, peak = (None, size) if used else (size, size + arguments)
        return Compiled(arguments, temp, peak, "", _too_large(peak, available))
    sizes = compiled.memory_analysis()
    peak = (
        sizes.argument_size_in_bytes
        + sizes.output_size_in_bytes
        - sizes.alias_size_in_bytes
        + sizes.temp_size_in_bytes
        + sizes.generated_code_size_in_bytes
    )
    reason = _too_large(peak, limit) if limit is not None and peak > limit else ""
    return Compiled(sizes.argument_size_in_bytes, sizes.temp_size_in_bytes, peak, compiled.as_text(), reason)


@contextlib.contextmanager
def _no_stored_programs() -> Iterator[None]:
    """Without the persistent cache: a program for devices that aren't there can't be loaded from it."""
    before = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


def _argument_bytes(job: Job) -> int:
    """State and batch on one device, without padding."""
    arguments = (job.abstract_state, job.abstract_batch(job.config.global_batch))
    return sharding.bytes_per_device(arguments, jax.tree.map(lambda x: x.sharding, arguments))


def _too_large(peak: int, limit: int) -> str:
    return (
        f"out of memory: needs {peak / 2**30:.2f} GiB of {limit / 2**30:.2f} GiB, "
        f"{(peak - limit) / 2**30:.2f} GiB too much"
    )
