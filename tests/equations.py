"""What a traced function computes, equation by equation."""

import math
from collections.abc import Iterator
from typing import Any

import jax


def equations(jaxpr: Any) -> Iterator[Any]:
    """All equations of a jaxpr, those of inner ones too; the body of a loop once."""
    for equation in jaxpr.eqns:
        yield equation
        for value in jax.tree.leaves(equation.params, is_leaf=lambda v: hasattr(v, "eqns")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from equations(inner)


def products(jaxpr: Any) -> int:
    """FLOPs of matrix products and convolutions (NHWC, HWIO): 2 for each number of the output and the sum over."""
    total = 0
    for equation in equations(jaxpr):
        out = math.prod(equation.outvars[0].aval.shape)
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            total += 2 * out * math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
        elif equation.primitive.name == "conv_general_dilated":
            total += 2 * out * math.prod(equation.invars[1].aval.shape[:3])
    return total
