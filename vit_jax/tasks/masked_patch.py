"""Masked patch prediction: pretraining without labels, ViT (arXiv 2010.11929), appendix B.1.2.

Part of an image's patches is hidden from a ViT, which predicts what they are from the others.
Shapes: B batch, N patches, K outputs for a patch.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import linen as nn
from ml_collections import ConfigDict

from vit_jax.errors import UsageError, known_names
from vit_jax.models.vit import ViT
from vit_jax.step import EVAL_PATCHES, PATCHES, Apply, Batch, normalize, purpose_key
from vit_jax.tasks import corruption
from vit_jax.tasks.patch_targets import CELLS, MeanColour, Pixels, SmallPatch, Target

TARGETS = ("mean_colour", "patch_4x4", "pixels")
# Parameters of a run of this task that no other model has a use for.
OWN_PARAMS = ("mask_token", "head")


@dataclass(frozen=True)
class MaskedPatch:
    """The task of images [B, H, W, C] uint8; labels aren't looked at.

    The loss of an example is the mean over its corrupted patches, the same number in every image.

    Attributes:
      target: what is predicted of a patch.
      patch_size, grid: P, and (rows, columns) of patches.
      count: corrupted patches of an image.
      mask_share, swap_share: of these, the shares that the mask token and another patch replace.
      accum_steps, seed, mean, std: see step.Task.
    """

    target: Target
    patch_size: int
    grid: tuple[int, int]
    count: int
    mask_share: float
    swap_share: float
    accum_steps: int
    seed: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def describe(self, target: str) -> str:
        """A line for the log."""
        patches = self.grid[0] * self.grid[1]
        return (
            f"{self.count} of an image's {patches} patches are hidden, their {target} is predicted "
            f"({self.target.outputs} outputs); labels aren't looked at"
        )

    def examples(self, batch: Batch, step: jax.Array) -> Batch:
        """image float32 [B, H, W, C] as the model sees it, masked and corrupted bool [B, N], target, mask [B].

        What is hidden is drawn for the global batch: a function of (seed, step, row) on any mesh.
        """
        rows = jnp.arange(batch["image"].shape[0])
        return self._examples(batch, _keys(purpose_key(self.seed, PATCHES, step), rows))

    def loss(self, apply: Apply, examples: Batch) -> jax.Array:
        """[B] float32."""
        outputs, _ = apply(examples["image"], masked=examples["masked"])
        return self._mean(self.target.loss(outputs, examples["target"]), examples["corrupted"])

    def sums(self, apply: Apply, batch: Batch) -> dict[str, jax.Array]:
        """Sums over the rows that count, float32.

        What is hidden is a function of the example's place in the split alone: the same for every model, seed,
        batch size and mesh.

        Args:
          batch: also "first" int32 [], the place of its first row.

        Returns:
          Scalars: loss: of examples; count: rows with a mask; correct: right answers; answers: all of them.
        """
        places = batch["first"] + jnp.arange(batch["image"].shape[0])
        examples = self._examples(batch, _keys(purpose_key(0, EVAL_PATCHES, 0), places))
        mask, corrupted = examples["mask"], examples["corrupted"]
        outputs, _ = apply(examples["image"], masked=examples["masked"])
        loss = self._mean(self.target.loss(outputs, examples["target"]), corrupted)
        correct = self.target.correct(outputs, corruption.to_patches(batch["image"], self.patch_size))
        return {
            "loss": jnp.sum(loss * mask),
            "count": jnp.sum(mask),
            "correct": jnp.sum(jnp.sum(correct * corrupted, axis=-1) * mask),
            "answers": jnp.sum(mask) * (self.count * self.target.answers),
        }

    def _examples(self, batch: Batch, keys: jax.Array) -> Batch:
        patches = corruption.to_patches(batch["image"], self.patch_size)
        drawn = corruption.draw(
            keys, patches.shape[1], self.count, mask_share=self.mask_share, swap_share=self.swap_share
        )
        seen = corruption.to_images(corruption.swap(patches, drawn.source), self.grid)
        return {
            "image": normalize(seen, self),
            "masked": drawn.masked,
            "corrupted": drawn.corrupted,
            "target": self.target.of(patches),
            "mask": batch["mask"],
        }

    def _mean(self, per_patch: jax.Array, corrupted: jax.Array) -> jax.Array:
        """[B, N] -> [B], over the corrupted patches. What isn't one may be anything, NaN too."""
        return jnp.sum(jnp.where(corrupted, per_patch, 0.0), axis=-1) / self.count


def _keys(key: jax.Array, rows: jax.Array) -> jax.Array:
    return jax.vmap(lambda row: jax.random.fold_in(key, row))(rows)


def make_task(
    config: ConfigDict, encoder: nn.Module, mean: tuple[float, ...], std: tuple[float, ...]
) -> MaskedPatch:
    """The task of a config.

    Args:
      encoder: the config's own model, which is to be pretrained.
      mean, std: per channel, in uint8 units.

    Raises:
      UsageError: a model without patches of its own, shares that don't go together, or keys of classification.
    """
    options = config.masked_patch
    _check_encoder(config, encoder)
    _check_classification(config)
    if options.target not in TARGETS:
        raise UsageError(f"masked_patch.target is {options.target!r}", known_names(options.target, TARGETS))
    for name in ("share", "mask_share", "swap_share"):
        if not 0 <= options[name] <= 1:
            raise UsageError(f"masked_patch.{name} is {options[name]}", "give a share, 0 to 1")
    if options.mask_share + options.swap_share > 1:
        raise UsageError(
            f"masked_patch.mask_share {options.mask_share} and swap_share {options.swap_share} are over 1 together",
            "make them at most 1; the rest of the corrupted patches stays as it is",
        )
    size, channels = encoder.patch_size, encoder.channels
    patches = encoder.grid[0] * encoder.grid[1]
    count = round(options.share * patches)
    if patches < 2 or count < 1:
        raise UsageError(
            f"masked_patch.share {options.share} of {patches} patches is {count}",
            "hide at least one of two: larger images, smaller patches or another share",
        )
    if options.target == "patch_4x4" and size % CELLS:
        raise UsageError(
            f"masked_patch.target is 'patch_4x4', and the patch size {size} no multiple of {CELLS}",
            "take target mean_colour or pixels, or another patch size",
        )
    targets: dict[str, Target] = {
        "mean_colour": MeanColour(channels),
        "patch_4x4": SmallPatch(channels),
        "pixels": Pixels(size, channels, mean, std),
    }
    return MaskedPatch(
        targets[options.target], size, encoder.grid, count, options.mask_share, options.swap_share,
        config.accum_steps, config.seed, mean, std,
    )  # fmt: skip


def predictor(encoder: ViT, task: MaskedPatch) -> ViT:
    """The encoder with a mask token and a linear prediction for every patch."""
    return encoder.clone(
        class_token=encoder.has_class_token,  # attends, though nothing reads it
        pool="none",
        num_classes=task.target.outputs,
        mask_token=True,
    )


def _check_encoder(config: ConfigDict, encoder: nn.Module) -> None:
    name = config.model.name
    if not isinstance(encoder, ViT):
        raise UsageError(
            f"task is 'masked_patch', and {name} no ViT: it has no mask token", "take a ViT such as B/16"
        )
    if encoder.backbone is not None:
        raise UsageError(
            f"task is 'masked_patch', and {name} a hybrid: its convolutions mix hidden patches into others",
            "take a ViT such as B/16",
        )
    if encoder.pool not in ("tok", "gap", "tok_gap"):
        raise UsageError(
            f"model.pool is {encoder.pool!r}, which masked patch prediction wouldn't train",
            "take tok, gap or tok_gap: what fine-tuning is to pool with",
        )
    if encoder.rep_size:
        raise UsageError(
            f"model.rep_size is {encoder.rep_size}, but task 'masked_patch' has no such layer",
            "set model.rep_size=0",
        )


def _check_classification(config: ConfigDict) -> None:
    """Keys that would have no effect are refused rather than ignored."""
    unused = {"loss": "softmax_xent", "label_smoothing": 0.0, "mixup_alpha": 0.0, "cutmix_alpha": 0.0}
    for name, value in unused.items():
        if config[name] != value:
            raise UsageError(
                f"{name} is {config[name]!r}, but task 'masked_patch' knows no labels",
                f"leave it out ({value!r})",
            )
