"""The ONNX graph under construction: nodes, constants, and arrays that may still lack their broadcast."""

import dataclasses
import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np

from vit_jax.errors import UsageError
from vit_jax.export.packages import needed

# Lengths of an array's axes; the batch is symbolic: a dimension of jax.export instead of a number.
Shape = tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Tensor:
    """An array that the ONNX program computes.

    `stored` is the shape it has in the program, `shape` the one that jax gives it. They differ where a broadcast
    was put off: length 1 stands for any length, as ONNX's elementwise operators have it anyway.
    """

    name: str
    shape: Shape
    stored: Shape


@dataclasses.dataclass(frozen=True)
class Known:
    """An array known at export: a parameter, or computed from parameters alone. Broadcasts are put off here too."""

    array: np.ndarray
    shape: Shape
    hint: str = ""  # the parameter it comes from

    @property
    def stored(self) -> Shape:
        return self.array.shape


Value = Tensor | Known


class Graph:
    """Nodes in order of computation, and the constants they read.

    Attributes:
        opset: version of ONNX's operator set.
        scope: prefix of the names of nodes to come, such as "encoder/block_0/attn".
    """

    def __init__(self, opset: int, images: Tensor, reserved: Iterable[str]) -> None:
        """images: the input, with the batch as its first axis; reserved: names that nodes mustn't take."""
        self.opset = opset
        self.scope = ""
        self._images = images
        self._nodes: list[Any] = []
        self._maker: dict[str, Any] = {}  # name of a tensor -> the node that computes it
        self._constants: dict[str, np.ndarray] = {}
        self._constant_names: dict[tuple, str] = {}
        self._batch: str | None = None
        self._taken = {images.name, *reserved}

    def node(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Adds a node; returns the name of its output, or a list of names where `outputs` is above 1."""
        name = self._free_name(f"{self.scope}/{op}".lstrip("/"))
        made = [name] if outputs == 1 else [f"{name}:{i}" for i in range(outputs)]
        node = needed("onnx.helper").make_node(op, list(inputs), made, name=name, **attributes)
        self._nodes.append(node)
        self._maker.update(dict.fromkeys(made, node))
        return made[0] if outputs == 1 else made

    def constant(self, array: np.ndarray, hint: str = "") -> str:
        """Name of a constant of this value; numbers that occur again are stored once, parameters each."""
        array = np.asarray(array, order="C")
        key = (array.dtype.str, array.shape, id(array) if hint or array.size > 64 else array.tobytes())
        if key not in self._constant_names:
            name = self._free_name(hint or f"constant/{array.dtype.name}")
            self._constant_names[key] = name
            self._constants[name] = array  # kept, so that no other array gets its id
        return self._constant_names[key]

    def ints(self, values: Iterable[int]) -> str:
        """Name of a constant [n] int64, as the shape and axes inputs of operators are."""
        return self.constant(np.asarray(list(values), np.int64))

    def name(self, value: Value) -> str:
        """Name of the value in its stored shape, for operators that broadcast by themselves."""
        return value.name if isinstance(value, Tensor) else self.constant(value.array, value.hint)

    def full(self, value: Value) -> str:
        """Name of the value in the shape that jax gives it."""
        if value.stored == value.shape:
            return self.name(value)
        if not any(is_symbolic(length) for length in value.shape):
            return self.node("Expand", self.name(value), self.ints(value.shape))
        batch = self._images.shape[0]
        if any(is_symbolic(length) and length != batch for length in value.shape):
            raise UsageError(
                f"a broadcast to {value.shape}, in {self.scope or 'the model'}, has no ONNX form here",
                "export to stablehlo",
            )
        if self._batch is None:
            self._batch = self.node("Shape", self._images.name, start=0, end=1)
        lengths = [self._batch if is_symbolic(length) else self.ints([length]) for length in value.shape]
        return self.node("Expand", self.name(value), self.node("Concat", *lengths, axis=0))

    def maker(self, name: str, op: str) -> Any:
        """The node that computes `name` if it is of this operator, else None."""
        node = self._maker.get(name)
        return node if node is not None and node.op_type == op else None

    def needed_for(self, output: str) -> tuple[list[Any], dict[str, np.ndarray]]:
        """Nodes and constants that the named tensor depends on."""
        wanted, kept = {output}, []
        for node in reversed(self._nodes):
            if wanted.intersection(node.output):
                kept.append(node)
                wanted.update(node.input)
        constants = {name: array for name, array in self._constants.items() if name in wanted}
        return kept[::-1], constants

    def _free_name(self, wish: str) -> str:
        numbered = (f"{wish}_{number}" for number in itertools.count(1))
        name = next(name for name in itertools.chain([wish], numbered) if name not in self._taken)
        self._taken.add(name)
        return name


def is_symbolic(length: Any) -> bool:
    """Whether the length of an axis is the batch's, unknown at export."""
    return not isinstance(length, (int, np.integer))
