"""Parser of preprocessing strings: `name(arguments)` joined by `|`, read as syntax, never run."""

import ast
from dataclasses import dataclass

from vit_jax.errors import UsageError

_WORDS = {"true": True, "false": False, "none": None}
_EXAMPLE = "write steps like 'decode|inception_crop(224)|flip_lr'"


@dataclass(frozen=True)
class Call:
    """One step of a string: its name, and its arguments as plain values."""

    name: str
    args: tuple[object, ...]
    kwargs: dict[str, object]


def parse_calls(text: str) -> list[Call]:
    """Splits `decode|resize((32,64), method="area")` into calls.

    Arguments are numbers, strings, `true`, `false`, `none` (or Python's spellings) and tuples of them.

    Raises:
      UsageError: anything else, with the part that isn't understood.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as e:
        raise UsageError(f"preprocessing {text!r} can't be parsed", _EXAMPLE) from e
    parts: list[ast.expr] = []
    while isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.BitOr):
        parts.append(tree.right)
        tree = tree.left
    parts.append(tree)
    return [_call(part, text) for part in reversed(parts)]


def last_step(text: str) -> str:
    """The last step of a program that parses, as text."""
    tree = ast.parse(text.strip(), mode="eval").body
    return ast.unparse(tree.right if isinstance(tree, ast.BinOp) else tree)


def _call(node: ast.expr, text: str) -> Call:
    if isinstance(node, ast.Name):
        return Call(node.id, (), {})
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        args = tuple(_value(a, text) for a in node.args)
        kwargs = {k.arg: _value(k.value, text) for k in node.keywords if k.arg is not None}
        if len(kwargs) == len(node.keywords):
            return Call(node.func.id, args, kwargs)
    raise UsageError(f"preprocessing {text!r}: {ast.unparse(node)!r} isn't a step", _EXAMPLE)


def _value(node: ast.expr, text: str) -> object:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float | str | bool | None):
        return node.value
    if isinstance(node, ast.Name) and node.id in _WORDS:
        return _WORDS[node.id]
    if isinstance(node, ast.Tuple | ast.List):
        return tuple(_value(item, text) for item in node.elts)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _value(node.operand, text)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return -value
    raise UsageError(
        f"preprocessing {text!r}: {ast.unparse(node)!r} isn't a value",
        "arguments are numbers, strings, true, false, none and tuples of them",
    )
