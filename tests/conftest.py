"""Strict settings for all tests: 8 virtual CPU devices, no silent rank promotion, quick compiles."""

import os
import tempfile
from pathlib import Path

# Before jax is imported anywhere. Unoptimised code compiles in a third of the time and computes the same numbers;
# tests that start the real command run it as users do.
os.environ["XLA_FLAGS"] = " ".join(
    [
        os.environ.get("XLA_FLAGS", ""),
        "--xla_force_host_platform_device_count=8",
        "--xla_backend_optimization_level=0",
        "--xla_llvm_disable_expensive_passes=true",
    ]
)
os.environ["JAX_PLATFORMS"] = "cpu"
# One compilation cache for all workers of this run, and for none after it.
os.environ.setdefault("VIT_JAX_TEST_CACHE", tempfile.mkdtemp(prefix="vit_jax_test_cache_"))

import jax
import pytest

GOLDEN = Path(__file__).parent / "golden"

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_default_matmul_precision", "highest")
jax.config.update("jax_compilation_cache_dir", os.environ["VIT_JAX_TEST_CACHE"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


@pytest.fixture(scope="session")
def golden() -> Path:
    """Folder of reference values: `golden/` for models and data, `golden/cases/` for odd inputs."""
    return GOLDEN
