"""The ViT paper's inner-view figures, drawn by matplotlib's Agg; no window and no global state.

Each takes numbers of `views` and `inspection` and gives a figure; `png` makes a file of it.
"""

import io
from collections.abc import Sequence

import cv2
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from vit_jax.views import Filters

# Above so many rows or columns of patches, evenly spaced ones are shown.
_MOST_MAPS = 14
_DPI = 120


def png(figure: Figure) -> bytes:
    """The figure as a PNG file."""
    file = io.BytesIO()
    FigureCanvasAgg(figure).print_png(file)
    return file.getvalue()


def draw_filters(filters: Filters) -> Figure:
    """Principal components of the patch embedding, each scaled to its own range (Figure 7, left)."""
    images, columns = filters.images, 7
    lowest, highest = images.min(axis=(1, 2, 3), keepdims=True), images.max(axis=(1, 2, 3), keepdims=True)
    shown = _colours((images - lowest) / np.maximum(highest - lowest, 1e-12))
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(6, 0.6 + 0.9 * rows), dpi=_DPI, layout="constrained")
    title = f"Embedding filters: first {len(shown)} principal components"
    figure.suptitle(f"{title}, {100 * filters.variance.sum():.0f} % of the variance", fontsize=10)
    for place, axes in enumerate(figure.subplots(rows, columns, squeeze=False).ravel()):
        axes.set_axis_off()
        if place < len(shown):
            axes.imshow(shown[place], interpolation="nearest", vmin=0, vmax=1, cmap="gray")
    return figure


def draw_positions(similarity: np.ndarray) -> Figure:
    """For each patch the similarity of its position embedding with all others' (Figure 7, centre).

    Args:
      similarity: [h, w, h, w].
    """
    height, width = similarity.shape[:2]
    rows, columns = _spread(height), _spread(width)
    gap = max(1, round(max(height, width) / 12))
    cell = (height + gap, width + gap)
    mosaic = np.full((len(rows) * cell[0] - gap, len(columns) * cell[1] - gap), np.nan)
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            y, x = i * cell[0], j * cell[1]
            mosaic[y : y + height, x : x + width] = similarity[row, column]
    tall = float(np.clip(4.9 * mosaic.shape[0] / mosaic.shape[1], 2, 10))
    figure = Figure(figsize=(6.4, tall + 0.7), dpi=_DPI, layout="constrained")
    axes = figure.subplots()
    shown = axes.imshow(mosaic, interpolation="nearest", vmin=-1, vmax=1, cmap="viridis")
    figure.colorbar(shown, ax=axes, label="cosine similarity", shrink=0.8)
    axes.set_title("Position embedding similarity", fontsize=10)
    axes.set_xlabel("patch column")
    axes.set_ylabel("patch row")
    axes.set_xticks([j * cell[1] + (width - 1) / 2 for j in range(len(columns))], [c + 1 for c in columns])
    axes.set_yticks([i * cell[0] + (height - 1) / 2 for i in range(len(rows))], [r + 1 for r in rows])
    axes.tick_params(length=0, labelsize=7)
    axes.spines[:].set_visible(False)
    return figure


def draw_distance(distance: np.ndarray, *, num_images: int) -> Figure:
    """Mean attention distance by head and depth (Figure 7, right).

    Args:
      distance: [L, H] pixels, mean over the images.
    """
    depth, heads = distance.shape
    figure = Figure(figsize=(6, 4), dpi=_DPI, layout="constrained")
    axes = figure.subplots()
    colours = [f"C{head % 10}" for head in range(heads)]
    for head in range(heads):
        axes.plot(np.arange(1, depth + 1), distance[:, head], "o", markersize=4, color=colours[head])
    axes.set_xlabel("network depth (layer)")
    axes.set_ylabel("mean attention distance (pixels)")
    over = "one image" if num_images == 1 else f"mean over {num_images} images"
    axes.set_title(f"Attention distance, one dot per head, {over}", fontsize=10)
    axes.set_ylim(0, 1.06 * float(np.max(distance, where=np.isfinite(distance), initial=1e-6)))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    return figure


def draw_rollout(image: np.ndarray, rollout: np.ndarray, *, title: str = "") -> Figure:
    """An image, the image dimmed where it isn't attended to, and attention alone (Figures 6 and 14).

    Args:
      image: uint8 [height, width, C], as the model takes it.
      rollout: [h, w], of any scale, see `attention_mask`.
    """
    height, width = image.shape[:2]
    mask = attention_mask(rollout, (height, width))
    picture = _colours(image / 255.0)
    dimmed = picture * (mask if picture.ndim == 2 else mask[..., None])
    side = 1.9
    tall = side * min(max(height / width, 0.3), 3) + (0.55 if title else 0.3)
    figure = Figure(figsize=(3 * side, tall), dpi=1.25 * _DPI, layout="constrained")
    if title:
        figure.suptitle(_shortened(title), fontsize=8, parse_math=False)
    parts = [
        ("input", picture, "gray"),
        ("attention × input", dimmed, "gray"),
        ("attention", mask, "inferno"),
    ]
    for axes, (name, shown, colours) in zip(figure.subplots(1, 3), parts, strict=True):
        axes.imshow(shown, cmap=colours, vmin=0, vmax=1, interpolation="nearest")
        axes.set_title(name, fontsize=9)
        axes.set_axis_off()
    return figure


def attention_mask(rollout: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """A map [h, w] over an image of `size`, 0..1, between patch centres bilinear.

    1 is what the brightest 2 % of the patches have: in some models a few patches without content draw most of the
    attention (arXiv 2309.16588), and beside them nothing else would be seen.
    """
    rollout = np.nan_to_num(rollout)  # of a model that has diverged
    brightest = np.quantile(rollout, 0.98) or rollout.max() or 1.0
    scaled = np.clip(rollout / brightest, 0, 1)
    return cv2.resize(scaled, size[::-1], interpolation=cv2.INTER_LINEAR)


def _colours(values: np.ndarray) -> np.ndarray:
    """[..., C] as matplotlib shows it: RGB, or gray without the channel; of other numbers of channels the mean."""
    return values if values.shape[-1] == 3 else values.mean(axis=-1)


def _spread(count: int) -> Sequence[int]:
    if count <= _MOST_MAPS:
        return range(count)
    return [round(i * (count - 1) / (_MOST_MAPS - 1)) for i in range(_MOST_MAPS)]


def _shortened(text: str, most: int = 90) -> str:
    """One line that matplotlib can draw, the end of the text kept."""
    line = "".join(c if c.isprintable() else "?" for c in text.encode(errors="replace").decode())
    return line if len(line) <= most else "…" + line[-most + 1 :]
