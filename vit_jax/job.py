"""What a configuration means: model, optimizer, mesh, durations and the compiled steps. No files are touched.

`train` runs a Job, `plan` and `bench` compile one. Everything that can be refused is refused here, before any
compile.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from vit_jax import (
    durations,
    flops,
    gathering,
    losses,
    mixup,
    model_config,
    optim,
    param_groups,
    schedules,
    sharding,
    step,
)
from vit_jax.data.dataset import DataFacts
from vit_jax.data.draws import check_repeats
from vit_jax.errors import UsageError, known_names
from vit_jax.models import model_fields
from vit_jax.models.features import check_representation
from vit_jax.models.vit import ViT
from vit_jax.tasks import masked_patch
from vit_jax.tasks.classify import Classify

PyTree = Any

TASKS = ("classify", "masked_patch")

# A scan without remat stacks all activations: above this many parameters that is refused.
_LARGE_SCAN = 100_000_000


@dataclass(frozen=True)
class EvalJob:
    """What it takes to evaluate: model, mesh and the compiled evaluation step.

    Attributes:
      abstract_params: ShapeDtypeStructs with shardings.
    """

    config: ConfigDict
    facts: DataFacts
    mesh: Mesh
    model: nn.Module
    task: step.Task
    eval_batch: int
    abstract_params: PyTree

    @property
    def batch_sharding(self) -> NamedSharding:
        """Of every array of a batch."""
        return sharding.batch_sharding(self.mesh)

    def abstract_batch(self, size: int) -> PyTree:
        """Shapes of a batch on the devices."""
        shapes = {
            "image": ((size, *self.facts.image_shape), jnp.uint8),
            "label": ((size, *self.facts.label_shape), jnp.float32 if self.facts.label_shape else jnp.int32),
            "mask": ((size,), jnp.float32),
        }
        return {k: jax.ShapeDtypeStruct(s, d, sharding=self.batch_sharding) for k, (s, d) in shapes.items()}

    @property
    def hides_patches(self) -> bool:
        """Whether the task is masked patch prediction."""
        return isinstance(self.task, masked_patch.MaskedPatch)

    def lower_eval_step(self, **options: Any) -> jax.stages.Lowered:
        """The evaluation step (params, batch) -> sums, traced; options of the task's `sums`."""
        function = functools.partial(step.eval_step, model=self.model, task=self.task, **options)
        replicated = sharding.replicated(self.mesh)
        batch = self.abstract_batch(self.eval_batch)
        if self.hides_patches:
            batch["first"] = jax.ShapeDtypeStruct((), jnp.int32, sharding=replicated)
        return jax.jit(function, out_shardings=replicated).lower(self.abstract_params, batch)

    def features_step(self, representation: str) -> Callable[[PyTree, step.Batch], dict[str, jax.Array]]:
        """The step (params, batch) -> rows, labels and mask, whole on every process; compiled when first used.

        Raises:
          UsageError: the model has no such representation.
        """
        check_representation(self.model, representation)
        function = functools.partial(
            step.features_step, model=self.model, scale=self.facts, representation=representation
        )
        return jax.jit(function, out_shardings=sharding.replicated(self.mesh))


@dataclass(frozen=True)
class Job(EvalJob):
    """A run, ready to be compiled. Durations are in optimizer steps; None means never.

    Attributes:
      groups: which parameters train, and at which share of the learning rate.
      abstract_state: ShapeDtypeStructs with shardings.
      flops_per_image: of a training step.
    """

    optimizer: optax.GradientTransformation
    groups: param_groups.ParamGroups
    schedule: schedules.Schedule
    total_steps: int
    log_every: int
    eval_every: int | None
    checkpoint_every: int | None
    abstract_state: PyTree
    flops_per_image: float

    @property
    def state_shardings(self) -> PyTree:
        """NamedSharding of every leaf of the state."""
        return jax.tree.map(lambda x: x.sharding, self.abstract_state)

    def create_state(self) -> step.TrainState:
        """The state before the first step, created where it will live."""
        init = functools.partial(
            step.init_state,
            self.model,
            self.optimizer,
            self.facts.image_shape,
            self.config.seed,
            frozen=self.groups.frozen,
            ema=self.config.ema_decay is not None,
        )
        return step.create_state(init, self.state_shardings)

    def lower_train_step(self) -> jax.stages.Lowered:
        """The training step (state, batch) -> (state, metrics), traced; the state is donated."""
        trained_shardings, _ = param_groups.split(self.state_shardings.params, self.groups.frozen)
        micro_sharding = NamedSharding(self.mesh, PartitionSpec(None, sharding.BATCH_AXES))
        function = functools.partial(
            step.train_step,
            model=self.model,
            optimizer=self.optimizer,
            schedule=self.schedule,
            task=self.task,
            frozen=self.groups.frozen,
            ema_decay=self.config.ema_decay,
            gather_params=gathering.gather_outside_layers(self.mesh, self.config.fsdp_min_size, self.model),
            constrain_params=lambda tree: jax.lax.with_sharding_constraint(tree, trained_shardings),
            constrain_micro_batches=lambda tree: jax.lax.with_sharding_constraint(tree, micro_sharding),
        )
        jitted = jax.jit(
            function,
            out_shardings=(self.state_shardings, sharding.replicated(self.mesh)),
            donate_argnums=0,
        )
        return jitted.lower(self.abstract_state, self.abstract_batch(self.config.global_batch))


def build(config: ConfigDict, facts: DataFacts, devices: Sequence[Any] | None = None) -> Job:
    """Builds the job of a config.

    Args:
      config: complete, see configs/base.py.
      facts: of its data.
      devices: to run on, or to compile for; None: all of the process group.

    Raises:
      UsageError: anything that doesn't go together; names the keys.
    """
    evaluation = build_eval(config, facts, devices)
    mesh, model = evaluation.mesh, evaluation.model
    sharding.check_batch(config.global_batch, mesh, config.accum_steps)
    mixup.check_batch(config.mixup_shard_examples, config.global_batch)
    check_repeats(config.global_batch, config.data.repeats)
    schedule, total = schedule_of(config, facts)
    if config.ema_decay is not None and not 0 < config.ema_decay < 1:
        raise UsageError(
            f"ema_decay is {config.ema_decay}", "give a number between 0 and 1, or None for none"
        )
    options = config.optim.to_dict()
    by_group = {name: options.pop(name) for name in ("frozen", "lr_mults", "layer_decay")}
    groups = param_groups.make_groups(evaluation.abstract_params, **by_group)
    optimizer = optim.make_optimizer(schedule=schedule, multipliers=groups.multipliers, **options)
    _check_size(config, evaluation)
    init = functools.partial(step.init_state, frozen=groups.frozen, ema=config.ema_decay is not None)
    shapes = jax.eval_shape(lambda: init(model, optimizer, facts.image_shape, config.seed))
    return Job(
        **evaluation.__dict__,
        optimizer=optimizer,
        groups=groups,
        schedule=schedule,
        total_steps=total,
        log_every=in_steps(config, facts, config, "log_every") or total,
        eval_every=in_steps(config, facts, config.eval, "every", "eval."),
        checkpoint_every=in_steps(config, facts, config.checkpoint, "every", "checkpoint."),
        abstract_state=_placed(config, shapes, mesh),
        flops_per_image=flops.TRAIN_PER_FORWARD * flops.forward_flops(model),
    )


def build_eval(config: ConfigDict, facts: DataFacts, devices: Sequence[Any] | None = None) -> EvalJob:
    """The part of `build` that evaluation needs; arguments and errors alike."""
    mesh = sharding.make_mesh(config.mesh.replica, config.mesh.fsdp, config.mesh.tensor, devices)
    eval_batch = config.global_batch if config.eval.global_batch is None else config.eval.global_batch
    if eval_batch < 1:
        raise UsageError(f"eval.global_batch is {eval_batch}", "give at least 1, or leave it out")
    # Padding costs nothing but time, so any size will do: rounded up to a row for every shard.
    eval_batch += -eval_batch % sharding.data_shards(mesh)
    model, task = _model_and_task(config, facts, mesh)
    params = jax.eval_shape(lambda: step.init_params(model, facts.image_shape, config.seed))
    return EvalJob(config, facts, mesh, model, task, eval_batch, _placed(config, params, mesh))


def _mix(config: ConfigDict) -> mixup.Mix:
    group = mixup.group_size(config.mixup_partner, config.mixup_shard_examples)
    return mixup.Mix(config.mixup_alpha, config.cutmix_alpha, config.cutmix_prob, group)


def schedule_of(config: ConfigDict, facts: DataFacts) -> tuple[schedules.Schedule, int]:
    """The learning rate by step, and the steps of the whole run.

    Raises:
      UsageError: no length, two lengths, or a warm-up and cool-down that don't fit into it.
    """
    total = in_steps(config, facts, config, "total", required=True)
    schedule = schedules.make_schedule(
        config.schedule,
        peak=config.optim.lr,
        total_steps=total,
        warmup_steps=in_steps(config, facts, config, "warmup") or 0,
        cooldown_steps=in_steps(config, facts, config, "cooldown") or 0,
        linear_end=config.schedule_end_lr,
        power=config.schedule_power,
        timescale=config.schedule_timescale_steps,
        **_stairs(config, total),
    )
    return schedule, total


def _stairs(config: ConfigDict, total: int) -> dict[str, tuple]:
    """Steps of the stair schedule, and the share of the peak from each on."""
    if config.schedule != "stair":
        return {}
    places, factor = config.schedule_stairs, config.schedule_stair_factor
    if not all(isinstance(p, int | float) and 0 < p < 1 for p in places) or not 0 <= factor < 1:
        raise UsageError(
            f"schedule_stairs is {places}, schedule_stair_factor {factor}",
            "give rising shares of the run between 0 and 1, and a factor below 1",
        )
    steps = tuple(round(place * total) for place in places)
    return {"boundaries": steps, "factors": tuple(factor ** (i + 1) for i in range(len(steps)))}


def in_steps(
    config: ConfigDict,
    facts: DataFacts,
    group: ConfigDict,
    name: str,
    prefix: str = "",
    required: bool = False,
) -> int | None:
    """The duration `name` of a group of the config in steps; None: not given. `prefix` is for messages."""
    return durations.to_steps(
        prefix + name,
        steps=group[f"{name}_steps"],
        epochs=group[f"{name}_epochs"],
        examples=group[f"{name}_examples"],
        examples_per_epoch=facts.num_examples,
        global_batch=config.global_batch,
        required=required,
    )


def _model_and_task(config: ConfigDict, facts: DataFacts, mesh: Mesh) -> tuple[nn.Module, step.Task]:
    if config.num_classes is not None and config.num_classes < 1:
        raise UsageError(f"num_classes is {config.num_classes}", "give at least 1, or leave it to data.train")
    parallel = {"constrain": sharding.constrain_activations(mesh)}
    if "gather" in model_fields(config.model.name):
        parallel["gather"] = gathering.layer_gather(mesh, config.fsdp_min_size, config.model.dtype)
    model = model_config.build_model(config, facts, **parallel)
    if config.task not in TASKS:
        raise UsageError(f"task is {config.task!r}", known_names(config.task, TASKS))
    if config.task == "masked_patch":
        hiding = masked_patch.make_task(config, model, facts.mean, facts.std)
        return masked_patch.predictor(model, hiding), hiding
    if isinstance(model, ViT) and model.pool == "none":
        raise UsageError("model.pool 'none' gives a prediction per patch", "train with tok, gap or map")
    return model, Classify(
        num_classes=facts.num_classes,
        train_loss=losses.make_loss(config.loss, label_smoothing=config.label_smoothing),
        eval_loss=losses.make_loss(config.loss, label_smoothing=0.0),
        mix=_mix(config),
        accum_steps=config.accum_steps,
        seed=config.seed,
        mean=facts.mean,
        std=facts.std,
    )


def _placed(config: ConfigDict, shapes: PyTree, mesh: Mesh) -> PyTree:
    """The same tree with the shardings of the rules."""
    placed = sharding.tree_shardings(
        shapes, mesh, rules=sharding.TENSOR_RULES, fsdp_min_size=config.fsdp_min_size
    )
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, placed)


def _check_size(config: ConfigDict, job: EvalJob) -> None:
    """Refuses what would waste the memory of a large model in silence."""
    sharding.check_unsharded(
        job.abstract_params, job.mesh, rules=sharding.TENSOR_RULES, fsdp_min_size=config.fsdp_min_size
    )
    parameters = sum(x.size for x in jax.tree.leaves(job.abstract_params))
    scanned = config.model.scan and config.model.remat == "none"
    if scanned and parameters > _LARGE_SCAN and not config.allow_scan_without_remat:
        raise UsageError(
            f"model.scan without model.remat keeps every layer's activations ({parameters / 1e6:.0f} M parameters)",
            "set model.remat=full or dots, model.scan=false, or allow_scan_without_remat=true",
        )
