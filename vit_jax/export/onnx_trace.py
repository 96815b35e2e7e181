"""From a model to an ONNX graph, by way of the computation that jax traces: no architecture is written twice."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.traverse_util import unflatten_dict
from jax.extend.core import ClosedJaxpr, Literal

from vit_jax.export.inference import input_shape
from vit_jax.export.onnx_graph import Graph, Known, Tensor, Value, is_symbolic
from vit_jax.export.onnx_primitives import RULES, no_onnx_form

_LAYER_NORM = "layer_norm"  # the name under which the trace shows the function below

# Primitives that hold a computation of their own, by the parameter that holds it.
_NESTED = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr",
           "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr", "checkpoint": "jaxpr",
           "remat": "jaxpr", "remat2": "jaxpr"}  # fmt: skip


def onnx_graph(
    model: nn.Module, flat: dict[str, np.ndarray], opset: int, *, images: str, reserved: Sequence[str]
) -> tuple[Graph, Value]:
    """The graph of the model's logits for the input tensor named `images`, [N, H, W, C] float32.

    Args:
        model: unrolled, computing in float32.
        flat: parameters by "/"-joined names.
        opset: version of ONNX's operator set.
        images: name of the input.
        reserved: names that no node may take, such as the output's.

    Returns:
        the graph, and the value of the logits in it.

    Raises:
        UsageError: the model computes something that has no rule.
    """

    def logits(flat_params: dict[str, jax.Array], pixels: jax.Array) -> jax.Array:
        params = unflatten_dict(flat_params, sep="/")
        with nn.intercept_methods(_mark_layer_norms):
            return model.apply({"params": params}, pixels, train=False)[0]

    (batch,) = jax.export.symbolic_shape("N")
    pixels = jax.ShapeDtypeStruct((batch, *input_shape(model)), jnp.float32)
    specs = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in flat.items()}
    # Products of parameters are computed here, wherever that is: in full precision.
    with jax.default_matmul_precision("highest"):
        traced = jax.jit(logits).trace(specs, pixels).jaxpr
    order = [path[0].key for path, _ in jax.tree_util.tree_flatten_with_path(specs)[0]]
    given = Tensor(images, pixels.shape, pixels.shape)
    graph = Graph(opset, given, reserved)
    inputs = [Known(flat[name], flat[name].shape, name) for name in order]
    (output,) = _translate(graph, traced, [*inputs, given], scope="")
    return graph, output


def _translate(graph: Graph, closed: Any, inputs: list[Value], scope: str) -> list[Value]:
    """Adds the nodes of a traced computation; returns its outputs."""
    jaxpr, constants = (closed.jaxpr, closed.consts) if isinstance(closed, ClosedJaxpr) else (closed, ())
    values = dict(zip(jaxpr.invars, inputs, strict=True))
    for var, constant in zip(jaxpr.constvars, constants, strict=True):
        values[var] = Known(np.asarray(constant), np.shape(constant))
    makers = {var: equation for equation in jaxpr.eqns for var in equation.outvars}

    def value(atom: Any) -> Value:
        return Known(np.asarray(atom.val, atom.aval.dtype), ()) if isinstance(atom, Literal) else values[atom]

    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        arguments = [value(atom) for atom in equation.invars]
        graph.scope = "/".join(filter(None, (scope, _module_path(equation))))
        if name in _NESTED and params.get("name") == _LAYER_NORM:
            outputs = [_layer_norm_node(graph, *arguments)]
        elif name in _NESTED:
            outputs = _translate(graph, params[_NESTED[name]], arguments, graph.scope)
        elif all(isinstance(x, Known) for x in arguments) and _static(equation):
            outputs = _computed(equation, arguments)
        elif (softmax := _softmax_input(equation, makers)) is not None:
            x = value(softmax)
            outputs = [Tensor(graph.node("Softmax", graph.full(x), axis=-1), x.shape, x.shape)]
        elif name in RULES:
            outputs = RULES[name](graph, equation, *arguments)
        else:
            raise no_onnx_form(name, equation)
        outputs = outputs if isinstance(outputs, list) else [outputs]
        values.update(zip(equation.outvars, outputs, strict=True))
    return [value(atom) for atom in jaxpr.outvars]


def _static(equation: Any) -> bool:
    """Whether the equation's outputs, given its inputs, don't depend on the batch size."""
    lengths = [n for var in equation.outvars for n in var.aval.shape]
    return equation.primitive.name != "dim_as_value" and not any(map(is_symbolic, lengths))


def _computed(equation: Any, arguments: list[Known]) -> list[Known]:
    """What depends on parameters alone is computed now, such as kernels in another shape."""
    arrays = [np.broadcast_to(x.array, x.shape) for x in arguments]
    outputs = equation.primitive.bind(*arrays, **equation.params)
    outputs = outputs if equation.primitive.multiple_results else [outputs]
    hint = next((x.hint for x in arguments if x.hint), "")
    return [Known(np.asarray(output), output.shape, hint) for output in outputs]


@jax.jit
def layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array, eps: jax.Array) -> jax.Array:
    """LayerNorm of [..., D] as one operation that stays visible in the trace."""
    shift = x - x.mean(-1, keepdims=True)
    y = shift * jax.lax.rsqrt(jnp.square(shift).mean(-1, keepdims=True) + eps)
    return y * jnp.expand_dims(scale, range(x.ndim - 1)) + jnp.expand_dims(bias, range(x.ndim - 1))


def _mark_layer_norms(call: Any, args: tuple, kwargs: dict, context: Any) -> Any:
    """An interceptor of flax methods: LayerNorms over the last axis become calls of `layer_norm`."""
    module = context.module
    plain = type(module) is nn.LayerNorm and context.method_name == "__call__" and not kwargs
    if not (
        plain and module.use_scale and module.use_bias and module.reduction_axes == -1 == module.feature_axes
    ):
        return call(*args, **kwargs)
    scale, bias = (module.get_variable("params", name) for name in ("scale", "bias"))
    return layer_norm(args[0], scale, bias, module.epsilon)


def _layer_norm_node(graph: Graph, x: Value, scale: Value, bias: Value, eps: Known) -> Tensor:
    inputs = [graph.full(value) for value in (x, scale, bias)]
    name = graph.node("LayerNormalization", *inputs, axis=-1, epsilon=float(eps.array))
    return Tensor(name, x.shape, x.shape)


def _softmax_input(equation: Any, makers: dict[Any, Any]) -> Any | None:
    """x where the equation is the last of softmax(x) over the last axis, else None.

    That is e / sum(e) with e = exp(x - c), for any c that doesn't vary along the axis. One operator instead of
    six: runtimes have a fast kernel for it.
    """
    if equation.primitive.name != "div":
        return None
    e, total = equation.invars
    last = len(e.aval.shape) - 1
    exp, widened = _made_by("exp", e, makers), _made_by("broadcast_in_dim", total, makers)
    minus = exp and _made_by("sub", exp.invars[0], makers)
    summed = widened and _made_by("reduce_sum", widened.invars[0], makers)
    if not minus or not summed or summed.invars[0] is not e or summed.params["axes"] != (last,):
        return None
    x, shift = minus.invars
    per_row = (*e.aval.shape[:-1], 1)
    if total.aval.shape != per_row or shift.aval.shape != per_row or x.aval.shape != e.aval.shape:
        return None
    return x if widened.params["broadcast_dimensions"] == tuple(range(last)) else None


def _made_by(primitive: str, atom: Any, makers: dict[Any, Any]) -> Any | None:
    equation = None if isinstance(atom, Literal) else makers.get(atom)
    return equation if equation is not None and equation.primitive.name == primitive else None


def _module_path(equation: Any) -> str:
    """Where in the model the equation comes from, such as "encoder/block_0/attn"."""
    parts = [part for part in str(equation.source_info.name_stack).split("/") if part.isidentifier()]
    return "/".join(parts[1:])  # the first is the model's class; what is no identifier is jax's
