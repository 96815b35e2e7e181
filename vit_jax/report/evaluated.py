"""What a report is about. Apart from its making, so that the command can say it without matplotlib."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from vit_jax import job
from vit_jax.data.dataset import EvalData
from vit_jax.data.source import Source


@dataclass(frozen=True)
class Evaluated:
    """An evaluation that was made.

    Attributes:
      checkpoint, step: what was evaluated.
      job, params: the model on its mesh; data: the splits that it classified.
      others: test splits of the other evaluators by name; looked into where nothing was classified.
      config: of the checkpoint; own_data: whether it was evaluated on the data that it names.
      results, details, failed: as the evaluators gave them, see evaluate.
      command: the words of the command line.
    """

    checkpoint: str
    step: int | None
    job: job.EvalJob
    params: Any
    data: EvalData
    others: Mapping[str, Source]
    config: ConfigDict
    own_data: bool
    results: dict[str, Any]
    details: dict[str, np.ndarray]
    failed: Sequence[str]
    command: Sequence[str]
