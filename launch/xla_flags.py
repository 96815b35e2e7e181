"""The one table of compiler and runtime settings, each with its reason and source.

A name that the installed jaxlib or libtpu doesn't know ends the process (XLA_FLAGS, LIBTPU_INIT_ARGS), so
tests/launch/test_xla_flags.py feeds each entry to the installed parsers. None of the effects was measured by us.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .command import Refused, known_names


@dataclass(frozen=True)
class Flag:
    """A setting.

    how: "env" for a variable; "xla" for a flag of XLA_FLAGS; "tpu" for an option of libtpu's compiler.
    when: "always" on its platform; "multislice"; a TPU generation; or a set that is asked for by name.
    """

    platform: str
    how: str
    when: str
    name: str
    value: str
    reason: str
    source: str


FLAGS = (
    Flag("gpu", "env", "always", "JAX_OPTIMIZATION_LEVEL", "O1",
         "latency hiding and pipelined collectives, as this jaxlib knows them, in place of a list of flags",
         "jax's configuration options"),
    Flag("gpu", "env", "always", "XLA_PYTHON_CLIENT_MEM_FRACTION", "0.9",
         "jax takes 75 % of the memory by default; the rest of the last tenth is CUDA's and NCCL's own",
         "jax's notes on GPU memory"),
    Flag("gpu", "env", "always", "NCCL_DEBUG", "WARN",
         "says why a collective failed; a few lines otherwise", "NCCL's environment variables"),
    Flag("gpu", "xla", "deterministic", "--xla_gpu_deterministic_ops", "true",
         "the same run twice gives the same bits", "XLA's determinism notes"),
    Flag("gpu", "xla", "fsdp", "--xla_gpu_all_gather_combine_threshold_bytes", "134217728",
         "gathers one layer's parameters at once: up to H/14 in float32 it has 79 MB",
         "JAX toolbox's GPU performance notes: at least a layer's bytes"),
    Flag("gpu", "xla", "fsdp", "--xla_gpu_reduce_scatter_combine_threshold_bytes", "134217728",
         "the same for its gradients", "JAX toolbox's GPU performance notes"),
    Flag("tpu", "tpu", "multislice", "xla_tpu_enable_data_parallel_all_reduce_opt", "true",
         "overlaps the gradients' reduction over the slow network between slices with the backward pass",
         "MaxText's flag table"),
    Flag("tpu", "tpu", "multislice", "xla_tpu_data_parallel_opt_different_sized_ops", "true",
         "the same where the reductions differ in size, as kernels and biases do", "MaxText's flag table"),
    Flag("tpu", "tpu", "v6e", "xla_tpu_scoped_vmem_limit_kib", "98304",
         "compute-bound steps prefetch more into v6e's larger on-chip memory", "MaxText's flag table"),
)  # fmt: skip

# Sets that a launcher's --flags may name.
NAMED_SETS = ("deterministic", "fsdp")


def compiler_options(generation: str, slices: int) -> dict[str, str]:
    """Options for `jit(...).lower(...).compile(compiler_options=...)` on TPU.

    Args:
      generation: "v4", "v5e", "v5p", "v6e" or "7x".
      slices: how many the mesh spans.
    """
    wanted = {generation, "always"} | ({"multislice"} if slices > 1 else set())
    return {f.name: f.value for f in FLAGS if f.how == "tpu" and f.when in wanted}


def tpu_env(generation: str, slices: int, given: Mapping[str, str]) -> dict[str, str]:
    """Variables of a TPU job: the compiler options in LIBTPU_INIT_ARGS, then what was given, so that it wins."""
    options = " ".join(f"--{name}={value}" for name, value in compiler_options(generation, slices).items())
    return {**given, **_joined("LIBTPU_INIT_ARGS", options, given)}


def gpu_env(sets: Sequence[str], given: Mapping[str, str]) -> dict[str, str]:
    """Variables of a GPU job; given ones win.

    Raises:
      Refused: an unknown set.
    """
    for name in sets:
        if name not in NAMED_SETS:
            raise Refused(f"--flags={name}", known_names(name, NAMED_SETS))
    wanted = {"always", *sets}
    chosen = [f for f in FLAGS if f.platform == "gpu" and f.when in wanted]
    env = {f.name: f.value for f in chosen if f.how == "env"}
    flags = " ".join(f"{f.name}={f.value}" for f in chosen if f.how == "xla")
    return {**env, **given, **_joined("XLA_FLAGS", flags, given)}


def _joined(name: str, ours: str, given: Mapping[str, str]) -> dict[str, str]:
    value = f"{ours} {given[name]}".strip() if name in given else ours
    return {name: value} if value else {}
