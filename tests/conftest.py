"""Strict settings for all tests: 8 virtual CPU devices, no silent rank promotion, no network."""

import os
from pathlib import Path

# Before jax is imported anywhere.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import pytest

GOLDEN = Path(__file__).parent / "golden"

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_default_matmul_precision", "highest")


@pytest.fixture(scope="session")
def golden() -> Path:
    """Folder of reference values: `golden/` for models and data, `golden/cases/` for odd inputs."""
    return GOLDEN
