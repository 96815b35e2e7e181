"""timm's model of the same name as a second baseline of `bench step`, where torch and timm are installed."""

import importlib
import importlib.util
import os
import re
from collections.abc import Callable

import numpy as np

# Our variant -> timm's name of it.
_NAMES = {
    "Ti": "tiny", "S": "small", "M": "medium", "B": "base", "L": "large", "H": "huge",
    "So400m": "so400m", "g": "giant", "G": "gigantic",
}  # fmt: skip


def missing() -> str | None:
    """Which package is missing for timm to be timed, None if none is."""
    absent = [name for name in ("torch", "timm") if importlib.util.find_spec(name) is None]
    return " and ".join(absent) + " not installed" if absent else None


def timm_name(model: str) -> str | None:
    """`Ti/16` -> `vit_tiny_patch16_224`; None for a variant that timm doesn't have."""
    match = re.fullmatch(r"(\w+)/(\d+)", model)
    if match is None or match[1] not in _NAMES:
        return None
    return f"vit_{_NAMES[match[1]]}_patch{match[2]}_224"


def timm_calls(
    model: str, images: np.ndarray, labels: np.ndarray, *, dtype: str, device: str
) -> tuple[Callable[[], None], Callable[[], None]] | None:
    """(train, forward) of timm's model in eager mode, each a call that ends when its work is done.

    Args:
      model: our name.
      images: uint8 [B, H, W, 3]; labels: int64 [B].
      dtype: "float32", or "bfloat16" for autocast.
      device: "cpu" or "cuda".

    Returns:
      None if timm has no such model.
    """
    # Its threads would spin while the other candidates have their turn, and while others use the machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    torch, timm = importlib.import_module("torch"), importlib.import_module("timm")
    name = timm_name(model)
    if name is None or not timm.is_model(name):
        return None
    network = timm.create_model(name, num_classes=1000, img_size=images.shape[1]).to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    x = torch.from_numpy(images).to(device)
    y = torch.from_numpy(labels).to(device)
    autocast = torch.autocast(device, dtype=torch.bfloat16, enabled=dtype == "bfloat16")

    def loss_of() -> "torch.Tensor":
        pixels = x.permute(0, 3, 1, 2).float() / 127.5 - 1
        with autocast:
            logits = network(pixels)
        return torch.nn.functional.cross_entropy(logits.float(), y)

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    def train() -> None:
        network.train()
        optimizer.zero_grad(set_to_none=True)
        loss_of().backward()
        optimizer.step()
        wait()

    def forward() -> None:
        network.eval()
        with torch.inference_mode():
            loss_of()
        wait()

    return train, forward
