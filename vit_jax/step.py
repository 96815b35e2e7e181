"""The training step and the evaluation step: pure functions of (state, batch), and the state they carry.

`train`, `plan` and `bench` all compile these very functions. They know no config, file or mesh: shardings come
in as callables.
"""

import functools
from collections.abc import Callable, Collection
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import struct

from vit_jax.models.features import represent
from vit_jax.param_groups import merge, split

PyTree = Any
Batch = dict[str, jax.Array]
# The model with its parameters bound: (images, keywords of the model) -> logits, aux.
Apply = Callable[..., tuple[jax.Array, dict[str, jax.Array]]]

# Purposes that random numbers are drawn for: key = fold_in(fold_in(seed, purpose), step).
INIT, DROPOUT, MIXUP, PATCHES, EVAL_PATCHES = range(5)


@struct.dataclass
class TrainState:
    """What a checkpoint holds. No random state: keys are a function of (seed, purpose, step).

    Attributes:
      step: int32 [], batches seen.
      params: the model's parameters, float32.
      opt_state: the optimizer's state, of the parameters that train.
      skipped: int32 [], updates left out because they were not finite.
      skipped_in_a_row: int32 [], of those, the ones since the last good update.
      ema: exponential moving average of the parameters (Polyak averaging), float32; () where there is none.
    """

    step: jax.Array
    params: PyTree
    opt_state: PyTree
    skipped: jax.Array
    skipped_in_a_row: jax.Array
    ema: PyTree = ()


class Task(Protocol):
    """What a run learns: of a batch, what the model sees and what its answers should be. See vit_jax.tasks.

    Attributes:
      accum_steps: micro-batches per update.
      seed: of everything that is drawn in a step, dropout included.
      mean, std: per channel, in uint8 units: the model's input is (image - mean) / std.
    """

    @property
    def accum_steps(self) -> int: ...

    @property
    def seed(self) -> int: ...

    @property
    def mean(self) -> tuple[float, ...]: ...

    @property
    def std(self) -> tuple[float, ...]: ...

    def examples(self, batch: Batch, step: jax.Array) -> Batch:
        """What the loss is a function of, for a step's global batch: arrays [B, ...], "mask" [B] among them."""

    def loss(self, apply: Apply, examples: Batch) -> jax.Array:
        """Loss of each example [B] float32, masked ones too."""

    def sums(self, apply: Apply, batch: Batch, **options: Any) -> dict[str, jax.Array]:
        """What evaluation adds up over the batches of a split, float32; masked rows don't count."""


def purpose_key(seed: int, purpose: int, step: jax.Array | int) -> jax.Array:
    """The key of one purpose at one step, a function of nothing else."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), purpose), step)


def init_params(model: nn.Module, image_shape: tuple[int, int, int], seed: int) -> PyTree:
    """Random initial parameters for images of `image_shape` [H, W, C]. Traceable."""
    return model.init(purpose_key(seed, INIT, 0), jnp.zeros((1, *image_shape), jnp.float32))["params"]


def init_state(
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    image_shape: tuple[int, int, int],
    seed: int,
    *,
    frozen: Collection[str] = (),
    ema: bool = False,
) -> TrainState:
    """The state before the first step. Traceable; see create_state.

    Args:
      model, optimizer, seed: as of the training step.
      image_shape: [H, W, C].
      frozen: paths of parameters that aren't trained.
      ema: whether the state holds an average of the parameters; it starts as a copy of them.
    """
    params = init_params(model, image_shape, seed)
    zero = jnp.zeros((), jnp.int32)
    opt_state = optimizer.init(split(params, frozen)[0])
    return TrainState(zero, params, opt_state, zero, zero, start_average(params) if ema else ())


def start_average(params: PyTree) -> PyTree:
    """A copy in buffers of its own: parameters and average are both donated to the next step. Traceable."""
    return jax.tree.map(lambda x: jnp.array(x, jnp.float32, copy=True), params)


def create_state(init: Callable[[], TrainState], shardings: PyTree) -> TrainState:
    """Creates the state where it will live: no device ever holds an unsharded copy.

    Args:
      init: init_state with its arguments bound.
      shardings: a NamedSharding for every leaf of jax.eval_shape(init).
    """
    return jax.jit(init, out_shardings=shardings)()


class Scale(Protocol):
    """A Task or the DataFacts: mean and std per channel, in uint8 units."""

    @property
    def mean(self) -> tuple[float, ...]: ...

    @property
    def std(self) -> tuple[float, ...]: ...


def normalize(images: jax.Array, scale: Scale) -> jax.Array:
    """uint8 [B, H, W, C] -> float32 as the model expects it."""
    mean = jnp.asarray(scale.mean, jnp.float32).reshape(1, 1, 1, -1)
    std = jnp.asarray(scale.std, jnp.float32).reshape(1, 1, 1, -1)
    return (images.astype(jnp.float32) - mean) / std


def train_step(
    state: TrainState,
    batch: Batch,
    *,
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    schedule: Callable[[jax.Array], jax.Array],
    task: Task,
    frozen: Collection[str] = (),
    ema_decay: float | None = None,
    gather_params: Callable[[PyTree], PyTree] = lambda tree: tree,
    constrain_params: Callable[[PyTree], PyTree] = lambda tree: tree,
    constrain_micro_batches: Callable[[PyTree], PyTree] = lambda tree: tree,
) -> tuple[TrainState, dict[str, jax.Array]]:
    """One optimizer update.

    Order: what the task makes of the global batch (normalisation, mixup ...), gradients (summed over micro-batches
    in float32), one clip and one update on the mean gradient, then the average of the parameters. A non-finite
    loss or gradient leaves parameters, average and optimizer state as they were and is counted.

    Args:
      state: before the update.
      batch: image uint8 [B, H, W, C]; label int32 [B] or float32 [B, K]; mask float32 [B], 0 for a row that
        doesn't count.
      model, optimizer, task: see there.
      schedule: learning rate by number of updates made, for the log only.
      frozen: paths of parameters that aren't trained: they have no gradient, so the backward pass ends where it
        would only lead to them.
      ema_decay: d in ema += (1 - d) (params - ema); None where the state has no average.
      gather_params: makes parameters whole for the computation that its layers don't; see gathering.
      constrain_params: pins gradients, a tree of the parameters that train, to the shardings of the parameters.
      constrain_micro_batches: pins [accum, B / accum, ...] so that every micro-batch is spread over all devices.

    Returns:
      The state after it, and float32 scalars: loss, lr, grad_norm (before clipping, without frozen parameters),
      param_norm (of all), skipped, skipped_in_a_row, examples.
    """
    examples = task.examples(batch, state.step)
    mask = examples["mask"]
    count = jnp.maximum(mask.sum(), 1.0)
    dropout_key = purpose_key(task.seed, DROPOUT, state.step)

    trained, still = split(state.params, frozen)

    def loss_fn(trained: PyTree, micro: Batch, key: jax.Array) -> jax.Array:
        params = gather_params(merge(trained, still))
        apply = functools.partial(model.apply, {"params": params}, train=True, rngs={"dropout": key})
        per_example = task.loss(apply, micro)
        return jnp.sum(per_example * micro["mask"]) / count  # a share of the global mean, so shares add up

    loss, grads = _accumulate(jax.value_and_grad(loss_fn), trained, examples, dropout_key, task.accum_steps,
                              constrain_micro_batches)  # fmt: skip
    grads = constrain_params(grads)

    grad_norm = optax.tree.norm(grads)
    finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)

    # A frozen parameter is its own average; computing it would only add rounding errors.
    averaged, still_averaged = split(state.ema, frozen) if ema_decay is not None else ((), ())

    def update() -> tuple[PyTree, PyTree, PyTree]:
        updates, opt_state = optimizer.update(grads, state.opt_state, trained)
        params = optax.apply_updates(trained, updates)
        # As d * ema + (1 - d) * params the two float32 factors wouldn't add up to 1: at d = 0.9999 the average
        # would settle 0.02 % below the parameters.
        ema = () if ema_decay is None else jax.tree.map(
            lambda e, p: e + (1 - ema_decay) * (p - e), averaged, params
        )  # fmt: skip
        return params, opt_state, ema

    params, opt_state, ema = jax.lax.cond(finite, update, lambda: (trained, state.opt_state, averaged))
    params = merge(params, still)
    new_state = TrainState(
        step=state.step + 1,
        params=params,
        opt_state=opt_state,
        skipped=state.skipped + jnp.where(finite, 0, 1),
        skipped_in_a_row=jnp.where(finite, 0, state.skipped_in_a_row + 1),
        ema=() if ema_decay is None else merge(ema, still_averaged),
    )
    metrics = {
        "loss": loss,
        "lr": schedule(state.step - state.skipped),  # the optimizer counts the updates that it made
        "grad_norm": grad_norm,
        "param_norm": optax.tree.norm(params),
        "skipped": new_state.skipped.astype(jnp.float32),
        "skipped_in_a_row": new_state.skipped_in_a_row.astype(jnp.float32),
        "examples": mask.sum(),
    }
    return new_state, metrics


def _accumulate(
    value_and_grad: Callable[[PyTree, Batch, jax.Array], tuple[jax.Array, PyTree]],
    params: PyTree,
    batch: Batch,
    key: jax.Array,
    accum_steps: int,
    constrain: Callable[[PyTree], PyTree],
) -> tuple[jax.Array, PyTree]:
    """Sums loss and gradients over micro-batches, one at a time.

    Micro-batch j holds rows j, j + accum, j + 2 accum, ...: each device's contiguous rows give it an equal share
    of every micro-batch, so nothing moves between devices.
    """
    if accum_steps == 1:
        return value_and_grad(params, batch, key)

    def split(x: jax.Array) -> jax.Array:
        return jnp.swapaxes(x.reshape(x.shape[0] // accum_steps, accum_steps, *x.shape[1:]), 0, 1)

    micro_batches = constrain(jax.tree.map(split, batch))

    def add(
        total: tuple[jax.Array, PyTree], xs: tuple[jax.Array, Batch]
    ) -> tuple[tuple[jax.Array, PyTree], None]:
        index, micro = xs
        part = value_and_grad(params, micro, jax.random.fold_in(key, index))
        return jax.tree.map(jnp.add, total, part), None

    zeros = (jnp.zeros((), jnp.float32), jax.tree.map(jnp.zeros_like, params))
    total, _ = jax.lax.scan(add, zeros, (jnp.arange(accum_steps), micro_batches))
    return total


def predict_step(params: PyTree, images: jax.Array, *, model: nn.Module, scale: Scale) -> jax.Array:
    """Logits [B, K] float32 of images uint8 [B, H, W, C]: what evaluation counts and prediction shows."""
    return model.apply({"params": params}, normalize(images, scale), train=False)[0]


def features_step(
    params: PyTree, batch: Batch, *, model: nn.Module, scale: Scale, representation: str
) -> dict[str, jax.Array]:
    """A vector for each image, beside what it belongs to.

    Args:
      representation: one of `models.features.REPRESENTATIONS`.

    Returns:
      rows float32 [B, D]; label and mask, those of the batch.
    """
    outputs = model.apply({"params": params}, normalize(batch["image"], scale), train=False)
    rows = represent(model, *outputs, representation)
    return {"rows": rows, "label": batch["label"], "mask": batch["mask"]}


def eval_step(
    params: PyTree, batch: Batch, *, model: nn.Module, task: Task, **options: Any
) -> dict[str, jax.Array]:
    """Sums over the rows of a batch that count (mask 1), as the task defines them."""
    apply = functools.partial(model.apply, {"params": params}, train=False)
    return task.sums(apply, batch, **options)
