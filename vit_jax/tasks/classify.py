"""Classification: one class per image, or any number of them."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from vit_jax import losses, mixup
from vit_jax.step import MIXUP, Apply, Batch, normalize, purpose_key

# Of the calibration error: equal widths, as in Guo et al. (arXiv 1706.04599).
CALIBRATION_BINS = 15


@dataclass(frozen=True)
class Classify:
    """The task of images [B, H, W, C] uint8 with labels: int32 [B], or float32 [B, K].

    Attributes:
      num_classes: K.
      train_loss: (logits [B, K], targets [B, K]) -> [B], with label smoothing; see losses.make_loss.
      eval_loss: the same without smoothing.
      mix: how examples are mixed.
      accum_steps, seed, mean, std: see step.Task.
    """

    num_classes: int
    train_loss: losses.Loss
    eval_loss: losses.Loss
    mix: mixup.Mix
    accum_steps: int
    seed: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def examples(self, batch: Batch, step: jax.Array) -> Batch:
        """image float32 [B, H, W, C], target float32 [B, K] and mask [B]: normalised, mixed over the batch."""
        images = normalize(batch["image"], self)
        targets = losses.to_targets(batch["label"], self.num_classes)
        mask = batch["mask"]
        if self.mix.on:
            key = purpose_key(self.seed, MIXUP, step)
            images, targets, mask = mixup.mix(key, images, targets, mask, self.mix)
        return {"image": images, "target": targets, "mask": mask}

    def loss(self, apply: Apply, examples: Batch) -> jax.Array:
        """[B] float32."""
        logits, _ = apply(examples["image"])
        return self.train_loss(logits, examples["target"])

    def sums(self, apply: Apply, batch: Batch, *, confusion: bool = False) -> dict[str, jax.Array]:
        """Sums over the rows that count, float32.

        Args:
          confusion: whether to count confusions too: K x K numbers.

        Returns:
          Scalars: correct: rows whose top class is (among) the label's; correct_top5: rows with one of it among the
          five largest; loss: cross-entropy without smoothing; count: rows with a mask; labelled: of those, the rows
          with at least one class (the denominator of the accuracies).
          calibration [3, bins], by confidence: rows, sum of confidences (softmax of the top class), correct rows.
          class_count, class_correct [K]: rows of each class, and the correct ones among them; for class indices.
          confusion [K, K]: rows of class i whose top class is j.
        """
        logits, _ = apply(normalize(batch["image"], self))
        labels = batch["label"]
        targets = losses.to_targets(labels, self.num_classes)
        mask = batch["mask"]
        correct, labelled = losses.top1_correct(logits, targets)
        correct_top5, _ = losses.topk_correct(logits, targets, 5)
        counted = labelled * mask
        sums = {
            "correct": jnp.sum(correct * mask),
            "correct_top5": jnp.sum(correct_top5 * mask),
            "labelled": jnp.sum(counted),
            "loss": jnp.sum(self.eval_loss(logits, targets) * mask),
            "count": jnp.sum(mask),
            "calibration": _calibration(logits, correct, counted),
        }
        if labels.ndim == 1:
            by_class = targets * mask[:, None]
            sums["class_count"] = jnp.sum(by_class, axis=0)
            sums["class_correct"] = jnp.sum(by_class * correct[:, None], axis=0)
            if confusion:
                best = jax.nn.one_hot(jnp.argmax(logits, axis=-1), self.num_classes)
                sums["confusion"] = jnp.matmul(by_class.T, best, precision="highest")
        return sums


def _calibration(logits: jax.Array, correct: jax.Array, counted: jax.Array) -> jax.Array:
    """[3, bins]: rows, confidence and correct rows, by bins of the confidence; a NaN counts in none."""
    confidence = jnp.max(jax.nn.softmax(logits.astype(jnp.float32)), axis=-1)
    place = jnp.clip((confidence * CALIBRATION_BINS).astype(jnp.int32), 0, CALIBRATION_BINS - 1)
    known = ~jnp.isnan(confidence)
    chosen = jax.nn.one_hot(place, CALIBRATION_BINS) * (counted * known)[:, None]
    per_row = jnp.stack([jnp.ones_like(confidence), jnp.where(known, confidence, 0.0), correct])
    return jnp.matmul(per_row, chosen, precision="highest")
