"""Programs for elsewhere, from a model and its parameters: ONNX and StableHLO, both one-way.

Both compute logits from images [N, H, W, C] float32, already normalised, for any batch size N, and carry what a
user needs besides: class names, normalisation, image size and the model's fields.
"""

from vit_jax.export.onnx_file import read_back_logits_onnx, write_onnx
from vit_jax.export.parity import parity
from vit_jax.export.stablehlo import load_stablehlo, write_stablehlo

__all__ = ["load_stablehlo", "parity", "read_back_logits_onnx", "write_onnx", "write_stablehlo"]
