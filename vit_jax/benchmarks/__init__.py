"""Measurements beside a baseline in the same run: `python -m vit_jax.bench`."""
