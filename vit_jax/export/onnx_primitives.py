"""Each jax primitive that models use, as ONNX operators.

A rule gets the graph, the equation and its inputs, and returns the output, or a list of them. Unknown primitives
are refused by the caller: nothing is approximated.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from vit_jax.errors import UsageError
from vit_jax.export.onnx_graph import Graph, Known, Shape, Tensor, Value, is_symbolic
from vit_jax.export.packages import needed

Rule = Callable[..., Value | list[Value]]

Axes = tuple[tuple[int, ...], ...]  # groups of axes

RULES: dict[str, Rule] = {}

# Primitives with an operator of the same meaning, elementwise with broadcasting.
ELEMENTWISE = {
    "abs": "Abs",
    "add": "Add",
    "div": "Div",
    "eq": "Equal",
    "erf": "Erf",
    "exp": "Exp",
    "ge": "GreaterOrEqual",
    "gt": "Greater",
    "le": "LessOrEqual",
    "log": "Log",
    "logistic": "Sigmoid",
    "lt": "Less",
    "max": "Max",
    "min": "Min",
    "mul": "Mul",
    "neg": "Neg",
    "pow": "Pow",
    "sqrt": "Sqrt",
    "sub": "Sub",
    "tanh": "Tanh",
}
UNCHANGED = ("copy", "stop_gradient")


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers the decorated function for these primitives."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def shape_of(equation: Any) -> Shape:
    return equation.outvars[0].aval.shape


@rule(*ELEMENTWISE)
def _elementwise(graph: Graph, equation: Any, *inputs: Value) -> Tensor:
    if equation.primitive.name == "div" and not np.issubdtype(equation.invars[0].aval.dtype, np.floating):
        raise _unsupported(equation, "of whole numbers")  # jax rounds towards zero
    return _combined(graph, ELEMENTWISE[equation.primitive.name], equation, *inputs)


@rule(*UNCHANGED)
def _unchanged(_graph: Graph, _equation: Any, x: Value) -> Value:
    return x


@rule("square")
def _square(graph: Graph, equation: Any, x: Value) -> Tensor:
    return _combined(graph, "Mul", equation, x, x)


@rule("integer_pow")
def _integer_pow(graph: Graph, equation: Any, x: Value) -> Tensor:
    exponent = Known(np.asarray(equation.params["y"], equation.invars[0].aval.dtype), ())
    return _combined(graph, "Pow", equation, x, exponent)


@rule("rsqrt")
def _rsqrt(graph: Graph, equation: Any, x: Value) -> Tensor:
    return _combined(graph, "Reciprocal", equation, _combined(graph, "Sqrt", equation, x))


@rule("erfc")
def _erfc(graph: Graph, equation: Any, x: Value) -> Tensor:
    one = Known(np.ones((), equation.invars[0].aval.dtype), ())
    return _combined(graph, "Sub", equation, one, _combined(graph, "Erf", equation, x))


@rule("ne")
def _ne(graph: Graph, equation: Any, x: Value, y: Value) -> Tensor:
    return _combined(graph, "Not", equation, _combined(graph, "Equal", equation, x, y))


@rule("select_n")
def _select_n(graph: Graph, equation: Any, which: Value, *cases: Value) -> Tensor:
    if len(cases) != 2 or equation.invars[0].aval.dtype != np.bool_:
        raise _unsupported(equation, f"between {len(cases)} cases")
    return _combined(graph, "Where", equation, which, cases[1], cases[0])


@rule("convert_element_type")
def _convert_element_type(graph: Graph, equation: Any, x: Value) -> Value:
    old, new = equation.invars[0].aval.dtype, equation.params["new_dtype"]
    if old == new:
        return x
    to = needed("onnx.helper").np_dtype_to_tensor_dtype(np.dtype(new))
    return Tensor(graph.node("Cast", graph.name(x), to=to), x.shape, x.stored)


@rule("reduce_sum", "reduce_max", "reduce_min")
def _reduce(graph: Graph, equation: Any, x: Value) -> Tensor:
    axes = equation.params["axes"]
    op = {"reduce_sum": "ReduceSum", "reduce_max": "ReduceMax", "reduce_min": "ReduceMin"}[
        equation.primitive.name
    ]
    if op == "ReduceSum" or graph.opset >= 18:
        name = graph.node(op, graph.full(x), graph.ints(axes), keepdims=0)
    else:  # the axes of the others became an input later
        name = graph.node(op, graph.full(x), axes=list(axes), keepdims=0)
    return _full_tensor(name, equation)


@rule("reshape")
def _reshape(graph: Graph, equation: Any, x: Value) -> Value:
    return reshaped(graph, x, shape_of(equation))


@rule("transpose")
def _transpose(graph: Graph, equation: Any, x: Value) -> Value:
    return transposed(graph, x, equation.params["permutation"])


@rule("squeeze")
def _squeeze(graph: Graph, equation: Any, x: Value) -> Tensor:
    axes = equation.params["dimensions"]
    stored = tuple(n for i, n in enumerate(x.stored) if i not in axes)
    return Tensor(graph.node("Squeeze", graph.name(x), graph.ints(axes)), shape_of(equation), stored)


@rule("broadcast_in_dim")
def _broadcast_in_dim(graph: Graph, equation: Any, x: Value, *_lengths: Value) -> Value:
    """Only adds axes of length 1: elementwise operators do the rest, `Graph.full` where none follows."""
    shape, kept = shape_of(equation), equation.params["broadcast_dimensions"]
    stored = tuple(x.stored[kept.index(i)] if i in kept else 1 for i in range(len(shape)))
    if isinstance(x, Known):
        return Known(x.array.reshape(stored), shape, x.hint)
    added = [i for i in range(len(shape)) if i not in kept]
    name = graph.node("Unsqueeze", x.name, graph.ints(added)) if added else x.name
    return Tensor(name, shape, stored)


@rule("concatenate")
def _concatenate(graph: Graph, equation: Any, *parts: Value) -> Tensor:
    names = [graph.full(part) for part in parts]
    return _full_tensor(graph.node("Concat", *names, axis=equation.params["dimension"]), equation)


@rule("split")
def _split(graph: Graph, equation: Any, x: Value) -> list[Tensor]:
    sizes, axis = equation.params["sizes"], equation.params["axis"]
    if len(sizes) == 1:
        return [x]
    names = graph.node("Split", graph.full(x), graph.ints(sizes), outputs=len(sizes), axis=axis)
    return [
        Tensor(name, var.aval.shape, var.aval.shape)
        for name, var in zip(names, equation.outvars, strict=True)
    ]


@rule("slice")
def _slice(graph: Graph, equation: Any, x: Value) -> Value:
    starts, limits = equation.params["start_indices"], equation.params["limit_indices"]
    strides = equation.params["strides"] or (1,) * len(starts)
    axes = [
        i
        for i, n in enumerate(x.shape)
        if not (is_symbolic(n) or (starts[i], limits[i], strides[i]) == (0, n, 1))
    ]
    if any(
        is_symbolic(n) and (starts[i], strides[i], limits[i] == n) != (0, 1, True)
        for i, n in enumerate(x.shape)
    ):
        raise _unsupported(equation, "along the batch")
    if not axes:
        return x
    picked = [graph.ints([values[i] for i in axes]) for values in (starts, limits)]
    steps = graph.ints([strides[i] for i in axes])
    return _full_tensor(graph.node("Slice", graph.full(x), *picked, graph.ints(axes), steps), equation)


@rule("gather")
def _gather(graph: Graph, equation: Any, x: Value, indices: Value) -> Value:
    """Indexing by constants, x[:, 0] or x[:, 1:3], which jax writes as a gather of one window."""
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    if not isinstance(indices, Known) or indices.array.ndim != 1 or numbers.operand_batching_dims:
        raise _unsupported(equation, "by computed or several indices")
    starts = [int(i) for i in indices.array]
    axes = list(numbers.start_index_map)
    if any(is_symbolic(sizes[axis]) for axis in axes):
        raise _unsupported(equation, "along the batch")
    if any(not is_symbolic(n) and n != sizes[i] for i, n in enumerate(x.shape) if i not in axes):
        raise _unsupported(equation, "of a part of an axis without an index")
    if any(not 0 <= start <= x.shape[axis] - sizes[axis] for start, axis in zip(starts, axes, strict=True)):
        raise _unsupported(equation, "out of bounds")
    limits = [start + sizes[axis] for start, axis in zip(starts, axes, strict=True)]
    name = graph.node("Slice", graph.full(x), graph.ints(starts), graph.ints(limits), graph.ints(axes))
    if numbers.collapsed_slice_dims:
        name = graph.node("Squeeze", name, graph.ints(numbers.collapsed_slice_dims))
    return _full_tensor(name, equation)


@rule("pad")
def _pad(graph: Graph, equation: Any, x: Value, filling: Value) -> Tensor:
    low, high, between = zip(*equation.params["padding_config"], strict=True)
    if any(between) or min(*low, *high) < 0:
        raise _unsupported(equation, "between elements, or of negative width")
    name = graph.node("Pad", graph.full(x), graph.ints([*low, *high]), graph.full(filling), mode="constant")
    return _full_tensor(name, equation)


@rule("dot_general")
def _dot_general(graph: Graph, equation: Any, x: Value, y: Value) -> Value:
    """MatMul of [*batch, rows, summed] and [*batch, summed, columns]; jax orders the output batch, x, y."""
    (x_sum, y_sum), (x_batch, y_batch) = equation.params["dimension_numbers"]
    x_free = tuple(i for i in range(len(x.shape)) if i not in (*x_sum, *x_batch))
    y_free = tuple(i for i in range(len(y.shape)) if i not in (*y_sum, *y_batch))
    if x_batch and _in_order(y_batch, y_free, y_sum) and not _in_order(x_batch, x_free, x_sum):
        # y is a matrix as it stands, attention weights for instance: no need to turn it, the product will do.
        product = _matmul(graph, y, (y_batch, y_free, y_sum), x, (x_batch, x_sum, x_free))
        batch, rows, columns = len(x_batch), len(y_free), len(x_free)
        order = (*range(batch), *range(batch + rows, batch + rows + columns), *range(batch, batch + rows))
        return transposed(graph, product, order)
    return _matmul(graph, x, (x_batch, x_free, x_sum), y, (y_batch, y_sum, y_free))


def _matmul(graph: Graph, left: Value, left_axes: Axes, right: Value, right_axes: Axes) -> Value:
    """Product of values whose axes are grouped as (batch, rows, summed) and (batch, summed, columns)."""
    batch, rows, summed = (tuple(left.shape[i] for i in group) for group in left_axes)
    columns = tuple(right.shape[i] for i in right_axes[2])
    inner = math.prod(summed)
    left, right = (
        transposed(graph, x, sum(axes, ())) for x, axes in ((left, left_axes), (right, right_axes))
    )
    if batch or not rows:  # MatMul takes any number of row axes when there is no batch
        left = reshaped(graph, left, (*batch, math.prod(rows), inner))
    else:
        left = reshaped(graph, left, (*rows, inner))
    right = reshaped(graph, right, (*batch, inner, math.prod(columns)))
    shape = (*left.shape[:-1], right.shape[-1])
    product = Tensor(graph.node("MatMul", graph.full(left), graph.full(right)), shape, shape)
    return reshaped(graph, product, (*batch, *rows, *columns))


def _in_order(*groups: tuple[int, ...]) -> bool:
    axes = sum(groups, ())
    return axes == tuple(range(len(axes)))


@rule("conv_general_dilated")
def _conv(graph: Graph, equation: Any, x: Value, kernel: Value) -> Value:
    params = equation.params
    numbers = params["dimension_numbers"]
    if any(n != 1 for n in params["lhs_dilation"]) or params["batch_group_count"] != 1:
        raise _unsupported(equation, "with a dilated input or grouped batch")
    low, high = zip(*params["padding"], strict=True)
    name = graph.node(
        "Conv",
        graph.full(transposed(graph, x, numbers.lhs_spec)),  # [N, C, H, W]
        graph.full(transposed(graph, kernel, numbers.rhs_spec)),  # [out, in, H, W]
        strides=list(params["window_strides"]),
        pads=[*low, *high],
        dilations=list(params["rhs_dilation"]),
        group=params["feature_group_count"],
    )
    shape = tuple(shape_of(equation)[i] for i in numbers.out_spec)
    return transposed(graph, Tensor(name, shape, shape), np.argsort(numbers.out_spec))


@rule("reduce_window_max")
def _max_pool(graph: Graph, equation: Any, x: Value) -> Value:
    """Maxima over windows of the middle axes of [N, ..., C]; padding never wins, in jax as in ONNX."""
    params = equation.params
    window, strides, padding = (params[name] for name in ("window_dimensions", "window_strides", "padding"))
    dilated = any(n != 1 for name in ("base_dilation", "window_dilation") for n in params[name])
    if dilated or any((window[i], strides[i], tuple(padding[i])) != (1, 1, (0, 0)) for i in (0, -1)):
        raise _unsupported(equation, "over examples or channels, or dilated")
    rank = len(window)
    low, high = zip(*padding[1:-1], strict=True)
    name = graph.node(
        "MaxPool",
        graph.full(transposed(graph, x, (0, rank - 1, *range(1, rank - 1)))),
        kernel_shape=list(window[1:-1]),
        strides=list(strides[1:-1]),
        pads=[*low, *high],
    )
    full = shape_of(equation)
    shape = (full[0], full[-1], *full[1:-1])
    return transposed(graph, Tensor(name, shape, shape), (0, *range(2, rank), 1))


def transposed(graph: Graph, x: Value, permutation: Iterable[int]) -> Value:
    """The value with its axes in another order."""
    permutation = [int(i) for i in permutation]
    if permutation == sorted(permutation):
        return x
    shape, stored = (tuple(lengths[i] for i in permutation) for lengths in (x.shape, x.stored))
    if isinstance(x, Known):
        return Known(x.array.transpose(permutation), shape, x.hint)
    name = x.name
    if before := graph.maker(name, "Transpose"):  # two in a row are one
        name, permutation = before.input[0], [before.attribute[0].ints[i] for i in permutation]
    if permutation != sorted(permutation):
        name = graph.node("Transpose", name, perm=permutation)
    return Tensor(name, shape, stored)


def reshaped(graph: Graph, x: Value, shape: Shape) -> Value:
    """The value, broadcasts done, in another shape."""
    if x.shape == shape:
        return x
    if isinstance(x, Known) and x.stored == x.shape:
        return Known(x.array.reshape(shape), shape, x.hint)
    # 0 keeps the length that the input has at this place, -1 infers the length from the others.
    here = [i < len(x.shape) and is_symbolic(n) and x.shape[i] == n for i, n in enumerate(shape)]
    lengths = [(0 if same else -1) if is_symbolic(n) else n for n, same in zip(shape, here, strict=True)]
    return Tensor(graph.node("Reshape", graph.full(x), graph.ints(lengths)), shape, shape)


def _combined(graph: Graph, op: str, equation: Any, *inputs: Value) -> Tensor:
    """An operator that broadcasts its inputs; an axis that all of them still lack, the output lacks too."""
    shape = shape_of(equation)
    lacking = [all(x.stored == () or x.stored[i] == 1 for x in inputs) for i in range(len(shape))]
    stored = tuple(1 if one else n for one, n in zip(lacking, shape, strict=True))
    if all(x.stored == () for x in inputs):
        stored = ()
    return Tensor(graph.node(op, *(graph.name(x) for x in inputs)), shape, stored)


def _full_tensor(name: str, equation: Any) -> Tensor:
    return Tensor(name, shape_of(equation), shape_of(equation))


def _unsupported(equation: Any, how: str) -> UsageError:
    return no_onnx_form(f"{equation.primitive.name} {how}", equation)


def no_onnx_form(operation: str, equation: Any) -> UsageError:
    """The refusal of a computation that can't be written as ONNX."""
    where = str(equation.source_info.name_stack) or "the model"
    return UsageError(
        f"the jax operation {operation} in {where} has no ONNX form here", "export to stablehlo"
    )
