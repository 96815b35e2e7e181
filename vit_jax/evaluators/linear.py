"""Linear probe: multinomial logistic regression on frozen, standardised features.

Minimises mean cross-entropy + l2 / 2 |W|^2 (the bias is free), with L-BFGS to convergence or with SGD for sets that
are too large for that. scikit-learn's LogisticRegression(C) is the same problem at l2 = 1 / (C N).
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy.optimize import minimize

from vit_jax.errors import UsageError, known_names
from vit_jax.evaluators.classifiers import Standardize, accuracy
from vit_jax.evaluators.features import Features

SOLVERS = ("lbfgs", "sgd")
# L-BFGS ends when no entry of the gradient is larger. At 1e-5 weak strengths (l2 1e-4, a hundred classes)
# stop half a per cent above the minimum; float32 still resolves 1e-6.
_GRADIENT = 1e-6

Weights = dict[str, jax.Array]  # kernel [D, C], bias [C]


@dataclass(frozen=True)
class Linear:
    """A linear classifier.

    Attributes:
      standardize: of the features.
      kernel: float32 [D, C]; bias: float32 [C].
    """

    standardize: Standardize
    kernel: np.ndarray
    bias: np.ndarray

    def scores(self, features: np.ndarray) -> np.ndarray:
        """Logits float64 [n, C] of features [n, D]."""
        return self.standardize(features) @ self.kernel + self.bias


def _loss(weights: Weights, x: jax.Array, y: jax.Array, l2: jax.Array) -> jax.Array:
    logits = jnp.matmul(x, weights["kernel"], precision="highest") + weights["bias"][None]
    fit = optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()
    return fit + l2 / 2 * jnp.sum(jnp.square(weights["kernel"]))


_value_and_grad = jax.jit(jax.value_and_grad(_loss))


def fit(
    features: np.ndarray, labels: np.ndarray, num_classes: int, *, l2: float, max_steps: int = 1000
) -> Linear:
    """The minimum, by L-BFGS from zero.

    Args:
      features: [N, D].
      labels: int [N] in 0 ... num_classes - 1.
      l2: strength, per example.
      max_steps: iterations after which it ends anyway.
    """
    standardize = Standardize.of(features)
    x, y = _placed(standardize(features), labels)
    size = x.shape[1] * num_classes

    def unflat(flat: np.ndarray) -> Weights:
        flat = flat.astype(np.float32)
        return {"kernel": flat[:size].reshape(-1, num_classes), "bias": flat[size:]}

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        value, grad = jax.device_get(_value_and_grad(unflat(flat), x, y, np.float32(l2)))
        return float(value), np.concatenate([grad["kernel"].ravel(), grad["bias"]]).astype(np.float64)

    found = minimize(
        objective, np.zeros(size + num_classes), jac=True, method="L-BFGS-B",
        options={"maxiter": max_steps, "maxfun": 2 * max_steps, "gtol": _GRADIENT, "ftol": 1e-12},
    )  # fmt: skip
    return Linear(standardize, **unflat(found.x))


def fit_sgd(
    features: np.ndarray,
    labels: np.ndarray,
    num_classes: int,
    *,
    l2: float,
    lr: float,
    epochs: int,
    batch_size: int,
    seed: int = 0,
) -> Linear:
    """By SGD with momentum 0.9 and a cosine schedule to 0, from zero.

    Args:
      features, labels, num_classes, l2: as for `fit`.
      lr: where the schedule starts.
      epochs: passes over the features, each in another order, the last incomplete batch of each left out.
      batch_size: N if it is more.
      seed: of the orders.
    """
    standardize = Standardize.of(features)
    x, y = _placed(standardize(features), labels)
    batch_size = min(batch_size, len(labels))
    per_epoch = len(labels) // batch_size
    optimizer = optax.sgd(optax.cosine_decay_schedule(lr, max(per_epoch * epochs, 1)), momentum=0.9)
    weights = {"kernel": jnp.zeros((x.shape[1], num_classes)), "bias": jnp.zeros(num_classes)}
    state = (weights, optimizer.init(weights))
    rng = np.random.default_rng(seed)
    for _ in range(epochs):
        order = rng.permutation(len(labels))[: per_epoch * batch_size].reshape(per_epoch, batch_size)
        state = _epoch(state, x, y, order, np.float32(l2), update=optimizer.update)
    kernel, bias = jax.device_get((state[0]["kernel"], state[0]["bias"]))
    return Linear(standardize, kernel, bias)


@functools.partial(jax.jit, static_argnames="update")
def _epoch(
    state: tuple[Weights, Any], x: jax.Array, y: jax.Array, order: jax.Array, l2: jax.Array, *, update: Any
) -> tuple[Weights, Any]:
    def step(state: tuple[Weights, Any], rows: jax.Array) -> tuple[tuple[Weights, Any], None]:
        weights, opt_state = state
        updates, opt_state = update(jax.grad(_loss)(weights, x[rows], y[rows], l2), opt_state)
        return (optax.apply_updates(weights, updates), opt_state), None

    return jax.lax.scan(step, state, order)[0]


def _placed(x: np.ndarray, labels: np.ndarray) -> tuple[jax.Array, jax.Array]:
    """On one device of this process: every process fits the same."""
    device = jax.local_devices()[0]
    return jax.device_put(np.asarray(x, np.float32), device), jax.device_put(
        np.asarray(labels, np.int32), device
    )


@dataclass(frozen=True)
class LinearProbe:
    """The evaluation of one data set.

    Attributes:
      solver: lbfgs | sgd.
      l2s: strengths; of several, the best on a tenth of the training images is taken, then all are fitted.
      max_steps: of lbfgs.
      lr, epochs, batch_size: of sgd.
      seed: of the tenth, and of sgd's orders.
    """

    solver: str
    l2s: tuple[float, ...]
    max_steps: int
    lr: float
    epochs: int
    batch_size: int
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises UsageError for an unknown solver, or numbers that mean nothing."""
        if self.solver not in SOLVERS:
            raise UsageError(f"linear.solver is {self.solver!r}", known_names(self.solver, SOLVERS))
        if not self.l2s or min(self.l2s) < 0:
            raise UsageError(f"linear.l2 is {self.l2s}", "give strengths of at least 0, such as (1e-4, 1e-2)")
        if min(self.max_steps, self.epochs, self.batch_size) < 1 or self.lr <= 0:
            raise UsageError(
                f"linear.max_steps, epochs, batch_size, lr are {self.max_steps}, {self.epochs}, "
                f"{self.batch_size}, {self.lr}",
                "give numbers above 0",
            )

    def fit(self, features: np.ndarray, labels: np.ndarray, num_classes: int, l2: float) -> Linear:
        """With the solver of this probe; arguments as for the module's `fit`."""
        if self.solver == "lbfgs":
            return fit(features, labels, num_classes, l2=l2, max_steps=self.max_steps)
        return fit_sgd(
            features, labels, num_classes, l2=l2, lr=self.lr, epochs=self.epochs,
            batch_size=self.batch_size, seed=self.seed,
        )  # fmt: skip

    def choose(self, features: np.ndarray, labels: np.ndarray, num_classes: int) -> float:
        """The strength that is best on a tenth of the rows after fitting the others; of equals the first."""
        order = np.random.default_rng(self.seed).permutation(len(labels))
        dev, rest = np.split(order, [max(len(order) // 10, 1)])
        if len(self.l2s) == 1 or not len(rest):
            return self.l2s[0]
        scores = [
            accuracy(self.fit(features[rest], labels[rest], num_classes, l2), features[dev], labels[dev])
            for l2 in self.l2s
        ]
        return self.l2s[int(np.argmax(scores))]

    def measure(self, train: Features, test: Features, *, classes: Sequence[str]) -> dict[str, float]:
        """`linear/accuracy` on test, and `linear/l2`, the strength taken."""
        l2 = self.choose(train.rows, train.labels, len(classes))
        model = self.fit(train.rows, train.labels, len(classes), l2)
        return {"linear/accuracy": accuracy(model, test.rows, test.labels), "linear/l2": l2}
