"""Published results to stand beside ours: top-1 % on the test split after 1000 training examples."""

from dataclasses import dataclass

from vit_jax.data.vtab_tasks import TASKS


@dataclass(frozen=True)
class Row:
    """A published row.

    Attributes:
      name: in a narrow column.
      source: where it is from.
      scores: task -> %, all 19.
    """

    name: str
    source: str
    scores: dict[str, float]


def _row(name: str, source: str, *values: float) -> Row:
    return Row(name, source, dict(zip(TASKS, values, strict=True)))


_VIT = "ViT, arXiv 2010.11929, Table 9"
_VPT = "VPT, arXiv 2203.12119: ViT-B/16 from ImageNet-21k, ImageNet normalisation"
_VTAB = "google-research/task_adaptation, its published results"

# In the order of TASKS: natural, specialized, structured.
ROWS = (
    _row("H/14 JFT", _VIT, 95.3, 85.5, 75.2, 99.7, 97.2, 65.0, 88.9, 83.3, 96.7, 91.4, 76.6,
         91.7, 63.8, 53.1, 79.4, 63.3, 84.5, 33.2, 51.2),
    _row("L/16 JFT", _VIT, 95.4, 81.9, 74.3, 99.7, 96.7, 63.5, 87.4, 83.6, 96.5, 89.7, 77.1,
         86.4, 63.1, 49.7, 74.5, 60.5, 82.2, 36.2, 51.1),
    _row("L/16 I21k", _VIT, 90.8, 84.1, 74.1, 99.3, 92.7, 61.0, 80.9, 82.5, 95.6, 85.2, 75.3,
         70.3, 56.1, 41.9, 74.7, 64.9, 79.9, 30.5, 41.7),
    _row("B/16 full", _VPT, 87.7, 68.9, 64.3, 97.2, 86.9, 38.8, 87.4, 79.7, 95.7, 84.2, 73.9,
         56.3, 58.6, 41.7, 57.5, 46.7, 65.5, 25.7, 29.1),
    _row("B/16 linear", _VPT, 85.0, 63.4, 63.2, 97.0, 86.3, 51.0, 36.6, 78.5, 87.5, 68.6, 74.0,
         34.3, 30.6, 33.2, 12.5, 20.0, 55.4, 9.6, 19.2),
    _row("R50 Sup-Rot", _VTAB, 91.7, 53.7, 69.5, 90.8, 88.1, 32.8, 88.5, 83.4, 96.0, 82.0, 71.1,
         47.3, 57.2, 36.6, 88.3, 52.1, 77.1, 51.6, 33.7),
    _row("R50 Sup", _VTAB, 91.0, 57.0, 66.0, 88.6, 89.9, 34.4, 87.3, 80.6, 95.3, 80.8, 73.2,
         41.0, 56.1, 36.3, 85.7, 46.0, 70.6, 45.7, 35.4),
    _row("R50 scratch", _VTAB, 38.2, 13.2, 20.6, 40.2, 12.1, 5.0, 66.1, 75.6, 85.0, 42.6, 72.6,
         38.8, 55.2, 26.6, 78.4, 39.2, 42.7, 30.1, 37.6),
)  # fmt: skip
