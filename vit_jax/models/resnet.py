"""BiT ResNets, "Big Transfer" (arXiv 1912.11370): GroupNorm, weight-standardised convolutions, no BatchNorm.

Two generations differ and can't exchange weights. "v1" is the post-norm ResNet of the ViT paper's hybrids and of
big_vision's `bit`; "v2" is the pre-activation ResNet of BiT's released weights.

Shapes: B batch, H x W image or feature map, C channels, K classes.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn

from vit_jax.models import heads
from vit_jax.models.check import NORM_GROUPS, check_images, check_no_attention, check_resnet

ROOT_WIDTH = 64  # channels after the root and of the first stage's bottleneck, times the width factor
EXPANSION = 4  # a unit's output channels for one of its bottleneck


def _identity(x: jax.Array) -> jax.Array:
    return x


def _relative_to_std(kernel: jax.Array) -> jax.Array:
    """v1: epsilon is added to the standard deviation."""
    axes = (0, 1, 2)
    return (kernel - kernel.mean(axes, keepdims=True)) / (kernel.std(axes, keepdims=True) + 1e-5)


def _relative_to_variance(kernel: jax.Array) -> jax.Array:
    """v2: epsilon is added to the variance."""
    axes = (0, 1, 2)
    return (kernel - kernel.mean(axes, keepdims=True)) / jnp.sqrt(kernel.var(axes, keepdims=True) + 1e-10)


@dataclasses.dataclass(frozen=True)
class Generation:
    """What the two ResNets do differently.

    Attributes:
      norm_eps: epsilon of GroupNorm.
      standardise: kernel [h, w, I, O] -> kernel of mean 0 and variance 1 over (h, w, I).
      same_padding: "SAME" everywhere (v1), or half the window on each side (v2). They differ where the stride is 2.
      pre_activation: norm and ReLU before each convolution (v2) or after it (v1).
    """

    norm_eps: float
    standardise: Callable[[jax.Array], jax.Array]
    same_padding: bool
    pre_activation: bool


GENERATION = {
    "v1": Generation(1e-6, _relative_to_std, same_padding=True, pre_activation=False),
    "v2": Generation(1e-5, _relative_to_variance, same_padding=False, pre_activation=True),
}


def _padding(window: int, generation: str) -> str | list[tuple[int, int]]:
    half = window // 2
    return "SAME" if GENERATION[generation].same_padding else [(half, half), (half, half)]


class StdConv(nn.Module):
    """Convolution with a weight-standardised kernel [h, w, C, features] and no bias; [B, H, W, C]."""

    features: int
    window: int
    stride: int
    generation: str
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        rules = GENERATION[self.generation]
        shape = (self.window, self.window, x.shape[-1], self.features)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape)
        kernel = rules.standardise(kernel)  # in float32, whatever the convolution computes in
        return jax.lax.conv_general_dilated(
            x.astype(self.dtype),
            kernel.astype(self.dtype),
            (self.stride, self.stride),
            _padding(self.window, self.generation),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )


def group_norm(name: str, generation: str, dtype: jnp.dtype, zero: bool = False) -> nn.GroupNorm:
    """GroupNorm of 32 groups, statistics in float32; `zero` starts the scale at 0."""
    scale_init = nn.initializers.zeros if zero else nn.initializers.ones
    epsilon = GENERATION[generation].norm_eps
    return nn.GroupNorm(
        NORM_GROUPS,
        epsilon=epsilon,
        dtype=dtype,
        scale_init=scale_init,
        use_fast_variance=False,  # the difference of two means loses digits where the mean is large
        name=name,
    )


class Root(nn.Module):
    """7x7 convolution and 3x3 max-pooling, both with stride 2: [B, H, W, C] -> [B, H/4, W/4, features]."""

    features: int
    generation: str
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        rules = GENERATION[self.generation]
        x = StdConv(self.features, 7, 2, self.generation, self.dtype, name="conv")(images)
        if not rules.pre_activation:
            x = nn.relu(group_norm("norm", self.generation, self.dtype)(x))
        return nn.max_pool(x, (3, 3), (2, 2), _padding(3, self.generation))


class Unit(nn.Module):
    """Bottleneck unit 1x1, 3x3 (with the stride), 1x1: [B, H, W, C] -> [B, H/stride, W/stride, 4 features]."""

    features: int
    stride: int
    generation: str
    dtype: jnp.dtype
    constrain: Callable[[jax.Array], jax.Array]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.constrain(x)
        return self._pre_activation(x) if GENERATION[self.generation].pre_activation else self._post_norm(x)

    def _post_norm(self, x: jax.Array) -> jax.Array:
        """relu(x + norm3(conv3(...))): the shortcut projects x as it is, and norms it."""
        shortcut = x
        if self._must_project(x):
            shortcut = self._norm("proj_norm")(self._project()(x))
        y = nn.relu(self._norm("norm1")(self._conv("conv1", self.features, 1)(x)))
        y = nn.relu(self._norm("norm2")(self._conv("conv2", self.features, 3, self.stride)(y)))
        y = self._norm("norm3", zero=True)(self._conv("conv3", EXPANSION * self.features, 1)(y))
        return nn.relu(shortcut + y)

    def _pre_activation(self, x: jax.Array) -> jax.Array:
        """x + conv3(relu(norm3(...))): the shortcut projects what conv1 reads."""
        y = nn.relu(self._norm("norm1")(x))
        shortcut = self._project()(y) if self._must_project(x) else x
        y = self._conv("conv1", self.features, 1)(y)
        y = self._conv("conv2", self.features, 3, self.stride)(nn.relu(self._norm("norm2")(y)))
        y = self._conv("conv3", EXPANSION * self.features, 1)(nn.relu(self._norm("norm3")(y)))
        return shortcut + y

    def _must_project(self, x: jax.Array) -> bool:
        return self.stride != 1 or x.shape[-1] != EXPANSION * self.features

    def _project(self) -> StdConv:
        return self._conv("proj", EXPANSION * self.features, 1, self.stride)

    def _conv(self, name: str, features: int, window: int, stride: int = 1) -> StdConv:
        return StdConv(features, window, stride, self.generation, self.dtype, name=name)

    def _norm(self, name: str, zero: bool = False) -> nn.GroupNorm:
        return group_norm(name, self.generation, self.dtype, zero)


class Stage(nn.Module):
    """Units at one resolution and width; the first has the stride."""

    units: int
    features: int
    stride: int
    generation: str
    dtype: jnp.dtype
    constrain: Callable[[jax.Array], jax.Array]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for i in range(self.units):
            x = Unit(
                self.features,
                1 if i else self.stride,
                self.generation,
                self.dtype,
                self.constrain,
                name=f"unit_{i + 1}",
            )(x)
        return x


def root_and_stages(
    images: jax.Array,
    *,
    depths: tuple[int, ...],
    width_factor: float,
    generation: str,
    dtype: jnp.dtype,
    constrain: Callable[[jax.Array], jax.Array],
) -> tuple[jax.Array, jax.Array]:
    """The convolutional part, whose modules `root`, `stage_1`, … belong to the module that calls it.

    Returns:
        The last feature map [B, h, w, C] and the one after the root [B, H/4, W/4, 64 x width_factor].
    """
    width = round(ROOT_WIDTH * width_factor)
    x = stem = Root(width, generation, dtype, name="root")(images)
    for i, units in enumerate(depths):
        stride = 2 if i else 1
        x = Stage(units, width * 2**i, stride, generation, dtype, constrain, name=f"stage_{i + 1}")(x)
    return x, stem


class ResNet(nn.Module):
    """ResNet: images [B, H, W, C] float, already normalised -> logits [B, K] float32, aux.

    `vit_jax.create_model` fills the fields from a name such as "R50x1". Parameters are float32; `dtype` is the
    type of activations and convolutions. Norm statistics, pooled features and logits are float32 in any case.
    Images of any size will do.
    """

    depths: tuple[int, ...]  # units of each stage
    num_classes: int  # 0: no classifier, logits are the pre-logits
    image_size: int | tuple[int, int]  # (height, width) the model is meant for
    width_factor: float = 1.0
    generation: str = "v2"  # v1 (post-norm) | v2 (pre-activation)
    channels: int = 3
    head_bias_init: float = 0.0
    dtype: jnp.dtype | str = jnp.float32
    constrain: Callable[[jax.Array], jax.Array] = _identity  # on [B, H, W, C] activations at every unit

    @nn.compact
    def __call__(
        self, images: jax.Array, *, train: bool = False, capture_attention: bool = False
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Runs the model; training is no different, and needs no key.

        Returns:
            logits: [B, K] float32; the pre-logits when there are no classes.
            aux: "stem" [B, H/4, W/4, C] after the root, "pre_logits_2d" [B, h, w, C] float32 the last feature map
                (after the last norm and ReLU, for v2), "pre_logits" [B, C] float32 its mean.

        Raises:
            UsageError: fields that don't go together, images the model isn't made for, or `capture_attention`.
        """
        check_resnet(self)
        check_no_attention(self, capture_attention)
        check_images(self, images.shape, images.dtype)
        del train
        dtype = jnp.dtype(self.dtype)
        x, stem = root_and_stages(
            images,
            depths=self.depths,
            width_factor=self.width_factor,
            generation=self.generation,
            dtype=dtype,
            constrain=self.constrain,
        )
        if GENERATION[self.generation].pre_activation:
            x = nn.relu(group_norm("norm", self.generation, dtype)(x))
        x = x.astype(jnp.float32)
        aux = {"stem": stem, "pre_logits_2d": x, "pre_logits": x.mean(axis=(1, 2))}
        logits = aux["pre_logits"]
        if self.num_classes:
            logits = heads.classifier(self.num_classes, self.head_bias_init)(logits)
        return logits, aux
