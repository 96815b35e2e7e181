"""Compares exported models with timm and transformers themselves, where these are installed; prints differences.

    pip install torch timm transformers
    python -m tests.formats.peers --models=Ti/16,B/16 --sizes=224,384

Not part of the test suite, which needs no torch. Random weights and a random head, two random images.
"""

import argparse
import tempfile
from pathlib import Path

import jax
import numpy as np

from vit_jax.formats import writing
from vit_jax.formats.weights import Weights, model_of
from vit_jax.models.variants import variant_fields


def random_weights(name: str, size: int, gelu: str) -> Weights:
    """A model of 1000 classes, every one of which has its own logit."""
    fields = {**variant_fields(name), "num_classes": 1000, "image_size": (size, size), "gelu": gelu}
    model = model_of("vit", fields)
    params = jax.jit(model.init)(jax.random.key(0), np.zeros((1, size, size, 3), np.float32))["params"]
    params = jax.tree.map(np.asarray, params)
    kernel = params["head"]["kernel"]
    params["head"]["kernel"] = np.random.default_rng(0).normal(0, 0.05, kernel.shape).astype(np.float32)
    half = (127.5,) * 3
    return Weights("run", name, "vit", fields, params, "zoom", half, half)


def timm_logits(folder: Path, images: np.ndarray) -> np.ndarray:
    """Of timm's own model; it refuses missing and extra tensors."""
    import timm
    import torch

    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    with torch.no_grad():
        return model(torch.tensor(images).permute(0, 3, 1, 2)).numpy()


def transformers_logits(folder: Path, images: np.ndarray) -> np.ndarray:
    """Of Hugging Face's own model; missing, extra and mismatched tensors are an error."""
    import torch
    import transformers

    load = transformers.AutoModelForImageClassification.from_pretrained
    model, info = load(folder, output_loading_info=True)
    left = {name: found for name, found in info.items() if found}
    if left:
        raise SystemExit(f"{folder} isn't loaded strictly: {left}")
    with torch.no_grad():
        return model.eval()(pixel_values=torch.tensor(images).permute(0, 3, 1, 2)).logits.numpy()


PEERS = {"timm": timm_logits, "hf": transformers_logits}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default="Ti/16,B/16")
    parser.add_argument("--sizes", default="224,384")
    flags = parser.parse_args()
    for name in flags.models.split(","):
        for size in map(int, flags.sizes.split(",")):
            for gelu in ("tanh", "erf"):
                weights = random_weights(name, size, gelu)
                images = np.random.default_rng(1).uniform(-1, 1, (2, size, size, 3)).astype(np.float32)
                ours = np.asarray(jax.jit(weights.model().apply)({"params": weights.params}, images)[0])
                for layout, peer in PEERS.items():
                    with tempfile.TemporaryDirectory() as folder:
                        writing.write(weights, Path(folder) / "model", layout)
                        theirs = peer(Path(folder) / "model", images)
                    print(
                        f"{name} {size} px {gelu}-GELU {layout}: logits up to {np.abs(ours).max():.2f}, "
                        f"difference {np.abs(ours - theirs).max():.2g}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
