"""Reads what a compiled TPU program says of itself: cycles, bytes moved, collectives.

The scheduled program is text: computations of instructions, and on most instructions an `estimated_cycles` of the
compiler's own. A loop's body is written once, so costs are multiplied by its trip count.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

_HEADER = re.compile(r"^(ENTRY )?%([\w.\-]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%([\w.\-]+) = (.*)$")
_ARRAY = re.compile(r"\b([a-z]+\d*(?:e\dm\d\w*)?)\[([\d,]*)\](\{[^}]*\})?")
_NAME = re.compile(r"%([\w.\-]+)")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_BITS = {"token": 0, "pred": 8, "bf16": 16, "f16": 16, "f32": 32, "f64": 64, "s4": 4, "u4": 4}
_WINDOWED = re.compile(r"windowed_dot_general[\w.\-]*")
# A send is a part of a collective between slices, which leaves the device by its host.
COLLECTIVES = ("send", "all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")


@dataclass
class Instruction:
    """One line: `%name = shape opcode(operands), attributes`."""

    name: str
    shape: str
    opcode: str
    arguments: str
    operands: list[str]  # names among the arguments
    rest: str  # the attributes
    is_root: bool

    def called(self, attribute: str) -> list[str]:
        """Computations named by an attribute such as `body=` or `branch_computations={...}`."""
        match = re.search(rf"\b{attribute}=(\{{[^}}]*\}}|%[\w.\-]+)", self.rest)
        return _NAME.findall(match[1]) if match else []


@dataclass
class Computation:
    """Its instructions in order, and by name."""

    instructions: list[Instruction] = field(default_factory=list)
    by_name: dict[str, Instruction] = field(default_factory=dict)

    @property
    def root(self) -> Instruction:
        """What it returns."""
        return next(i for i in self.instructions if i.is_root)


@dataclass(frozen=True)
class Collective:
    """A collective operation of the program.

    Attributes:
      kind: one of COLLECTIVES.
      bytes: of the whole array on one device: the result of an all-gather, the input of a reduce-scatter.
      count: how often it runs in a step.
      groups: device ids, [groups, devices of each]; None where the text says it in another way.
      overlapped: in pieces beside other work, rather than alone.
    """

    kind: str
    bytes: int
    count: int
    groups: np.ndarray | None
    overlapped: bool


@dataclass(frozen=True)
class Costs:
    """Of one run of the program on one device.

    Attributes:
      matmul_cycles: the compiler's estimate for matrix products and what is fused with them.
      other_cycles: its estimate for all the rest.
      other_bytes: HBM bytes that the rest reads and writes.
      collectives: none of which the cycles include.
      uncounted_cycles: of those, the cycles in loops of unknown length, which count once: samplers that reject.
      windowed: matrix products turned into loops over shards because a weight's sharding leaked into them.
    """

    matmul_cycles: int
    other_cycles: int
    other_bytes: int
    collectives: tuple[Collective, ...]
    uncounted_cycles: int
    windowed: int


def read(text: str) -> Costs:
    """The costs of a scheduled program.

    Raises:
      ValueError: the text isn't such a program.
    """
    computations, entry = parse(text)
    matmul = other = moved = uncounted = 0
    collectives: list[Collective] = []
    for computation, times, counted in _scheduled(computations, entry):
        uncounted += 0 if counted else _total_cycles([(computation, times, counted)])
        for instruction in computation.instructions:
            cycles = _CYCLES.search(instruction.rest)
            if cycles is not None:
                if _is_matmul(instruction, computations):
                    matmul += times * int(cycles[1])
                else:
                    other += times * int(cycles[1])
                    moved += times * _hbm_bytes(instruction, computation, computations)
        collectives += _collectives_of(computation, times, computations)
    windowed = len(set(_WINDOWED.findall(text)))
    return Costs(matmul, other, moved, tuple(collectives), uncounted, windowed)


def parse(text: str) -> tuple[dict[str, Computation], str]:
    """Computations by name, and the entry's name."""
    computations: dict[str, Computation] = {}
    entry, current = "", None
    for line in text.splitlines():
        if header := _HEADER.match(line):
            current = computations[header[2]] = Computation()
            entry = header[2] if header[1] else entry
        elif current is not None and (match := _INSTRUCTION.match(line)):
            instruction = _instruction(match[2], match[3], bool(match[1]))
            current.instructions.append(instruction)
            current.by_name[instruction.name] = instruction
    if not entry:
        raise ValueError("no ENTRY computation: this is no compiled program")
    return computations, entry


def _instruction(name: str, text: str, is_root: bool) -> Instruction:
    end = _closing(text, 0) if text.startswith("(") else text.index(" ")
    shape, text = text[:end].strip(), text[end:].strip()
    opcode, _, text = text.partition("(")
    end = _closing("(" + text, 0) - 1
    arguments = text[: end - 1]
    return Instruction(name, shape, opcode.strip(), arguments, _NAME.findall(arguments), text[end:], is_root)


def _closing(text: str, start: int) -> int:
    """The place after the parenthesis that closes the one at `start`."""
    depth = 0
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if not depth:
            return place + 1
    raise ValueError(f"unbalanced parentheses in {text[:80]!r}")


def _scheduled(
    computations: dict[str, Computation], name: str, times: int = 1, counted: bool = True
) -> Iterator[tuple[Computation, int, bool]]:
    """Computations whose instructions run one after another: how often each runs, and whether that is known."""
    computation = computations[name]
    yield computation, times, counted
    for instruction in computation.instructions:
        if instruction.opcode == "while":
            trips = _trip_count(computations[instruction.called("condition")[0]])
            body = instruction.called("body")[0]
            yield from _scheduled(computations, body, times * (trips or 1), counted and trips is not None)
        elif instruction.opcode == "conditional":
            branches = instruction.called("branch_computations") or (
                instruction.called("true_computation") + instruction.called("false_computation")
            )
            # One of them runs: the costlier, which for a training step is the one that updates.
            yield from max(
                (list(_scheduled(computations, branch, times, counted)) for branch in branches),
                key=_total_cycles,
            )
        elif instruction.opcode == "call":
            yield from _scheduled(computations, instruction.called("to_apply")[0], times, counted)


def _total_cycles(parts: list[tuple[Computation, int, bool]]) -> int:
    return sum(
        times * int(cycles)
        for computation, times, _ in parts
        for instruction in computation.instructions
        for cycles in _CYCLES.findall(instruction.rest)
    )


def _trip_count(condition: Computation) -> int | None:
    """Of a loop that counts from 0 to below a constant, as scans do; None for others."""
    root = condition.root
    if root.opcode == "compare" and "direction=LT" in root.rest:
        for name in root.operands:
            operand = condition.by_name[name]
            if operand.opcode == "constant":
                return int(operand.arguments)
    constants = [i for i in condition.instructions if i.opcode == "constant" and i.shape.startswith("s32[]")]
    if len(constants) == 1:  # compared inside a fusion
        return int(constants[0].arguments)
    return None


def _is_matmul(instruction: Instruction, computations: dict[str, Computation]) -> bool:
    """Whether it is a product or a fusion around one; dense layers are convolutions on TPU."""
    if instruction.opcode in ("convolution", "dot"):
        return True
    inner = instruction.called("calls") if instruction.opcode == "fusion" else []
    return any(_is_matmul(i, computations) for name in inner for i in computations[name].instructions)


def _hbm_bytes(
    instruction: Instruction, computation: Computation, computations: dict[str, Computation]
) -> int:
    """Bytes between HBM and the chip; of arrays that are cut or updated in place only the part in question."""
    if instruction.opcode != "fusion":
        operands = (computation.by_name[name] for name in instruction.operands if name in computation.by_name)
        return array_bytes(instruction.shape) + sum(array_bytes(operand.shape) for operand in operands)
    fused = computations[instruction.called("calls")[0]]
    total = 0
    for parameter in fused.instructions:
        if parameter.opcode == "parameter":
            total += _bytes_read(parameter, fused)
    root = fused.root
    results = [fused.by_name[name] for name in root.operands] if root.opcode == "tuple" else [root]
    for result in (_unwrapped(result, fused) for result in results):
        if result.opcode == "dynamic-update-slice":
            target, update = (fused.by_name[name] for name in result.operands[:2])
            total += array_bytes(update.shape, anywhere=True) if array_bytes(target.shape) else 0
        else:
            total += array_bytes(result.shape)
    return total


def _unwrapped(instruction: Instruction, fused: Computation) -> Instruction:
    """What a chain of bitcasts shows in another shape."""
    while instruction.opcode == "bitcast":
        instruction = fused.by_name[instruction.operands[0]]
    return instruction


def _bytes_read(parameter: Instruction, fused: Computation) -> int:
    whole = array_bytes(parameter.shape)
    users = [i for i in fused.instructions if parameter.name in i.operands]
    if not whole or not users:
        return 0
    if all(i.opcode in ("dynamic-slice", "slice") for i in users):
        return sum(array_bytes(i.shape, anywhere=True) for i in users)
    if all(i.opcode == "dynamic-update-slice" and i.operands[0] == parameter.name for i in users):
        return 0
    return whole


def array_bytes(shape: str, *, anywhere: bool = False) -> int:
    """Bytes of the arrays of a shape that are in HBM: those whose layout names no other memory, such as S(1)."""
    total = 0
    for kind, dims, layout in _ARRAY.findall(shape):
        if not anywhere and re.search(r"S\([1-9]", layout):
            continue
        bits = _BITS[kind] if kind in _BITS else int(re.search(r"\d+", kind)[0])
        total += math.prod(int(n) for n in dims.split(",") if n) * bits // 8
    return total


def _collectives_of(
    computation: Computation, times: int, computations: dict[str, Computation]
) -> list[Collective]:
    """Of one scheduled computation. The pieces of an overlapped one are fusions that share its channel."""
    found: dict[str, Collective] = {}
    for instruction in computation.instructions:
        fused = instruction.opcode == "fusion" or instruction.opcode.startswith("async")
        for inner, scatters in _inside(instruction, computations):
            kind = inner.opcode.removesuffix("-start")
            if kind not in COLLECTIVES or (kind == "send" and "_xla_megascale" not in inner.rest):
                continue
            channel = re.search(r"channel_id=(\d+)", inner.rest)
            size = array_bytes(inner.shape, anywhere=True)
            groups = parse_groups(inner.rest)
            if kind == "reduce-scatter" and groups is not None:
                size *= groups.shape[1]
            if inner.opcode.endswith("-start") and inner.shape.startswith("("):
                size -= size // 2 if kind == "all-reduce" else 0
            kind = "reduce-scatter" if kind == "all-reduce" and scatters else kind
            key = channel[1] if channel else inner.name
            if key not in found or found[key].bytes < size:
                overlapped = (fused and not scatters) or inner.opcode.endswith("-start")
                found[key] = Collective(kind, size, times, groups, overlapped)
    return list(found.values())


def _inside(
    instruction: Instruction, computations: dict[str, Computation], scatters: bool = False
) -> Iterator[tuple[Instruction, bool]]:
    """An instruction and, of a fusion, those inside; whether a fused all-reduce keeps only a shard of its sum."""
    scatters = scatters or "all-reduce-scatter" in instruction.name
    inner = instruction.called("calls") if instruction.opcode not in COLLECTIVES else []
    if not inner:
        yield instruction, scatters
    for name in inner:
        for i in computations[name].instructions:
            yield from _inside(i, computations, scatters or "all-reduce-scatter" in name)


def parse_groups(attributes: str) -> np.ndarray | None:
    """Device ids [groups, devices of each] of `replica_groups=`; None for forms that aren't known."""
    if listed := re.search(r"replica_groups=\{(\{[\d,{} ]*\})\}", attributes):
        rows = [list(map(int, row.split(","))) for row in re.findall(r"\{([\d,]+)\}", listed[1])]
        return np.array(rows) if len({len(row) for row in rows}) == 1 else None
    if iota := re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", attributes):
        shape, dims = ([int(n) for n in iota[i].split(",")] for i in (1, 2))
        ids = np.arange(math.prod(dims)).reshape(dims)
        if iota[3]:
            ids = ids.transpose([int(n) for n in iota[3].split(",")])
        return ids.reshape(shape)
    if mesh := re.search(r"replica_groups=mesh\[([^\]]*)\] ?\{([^}]*)\}", attributes):
        return _mesh_groups(mesh[1], mesh[2])
    return None


def _mesh_groups(axes: str, along: str) -> np.ndarray | None:
    """`'a'=2,'b'=8` and `'b'`, or a part of an axis such as `'b':(2)4`: the middle factor 4 of 2 x 4 x rest."""
    sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", axes)}
    shape, chosen = [], []
    parts = {name: (pre, size) for name, pre, size in re.findall(r"'(\w+)'(?::\((\d+)\)(\d+))?", along)}
    if not parts or not set(parts) <= set(sizes):
        return None
    for name, size in sizes.items():
        pre, part = parts.get(name, ("", ""))
        factors = (int(pre), int(part), size // int(pre) // int(part)) if part else (1, size, 1)
        chosen += [len(shape) + 1] if name in parts else []
        shape += factors
    ids = np.arange(math.prod(shape)).reshape(shape)
    rest = [axis for axis in range(len(shape)) if axis not in chosen]
    group = math.prod(shape[axis] for axis in chosen)
    return ids.transpose([*rest, *chosen]).reshape(-1, group)
