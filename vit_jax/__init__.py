"""Vision Transformers in JAX/Flax: pretraining, fine-tuning and evaluation."""
