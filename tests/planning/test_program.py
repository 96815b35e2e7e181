"""Costs read off a compiled program, on programs small enough to count by hand."""

import numpy as np
import pytest

from vit_jax.planning import program

# One loop of 3 trips around a matrix product and a gather; a conditional; an update in place; an overlapped gather.
# ruff: noqa: E501
TEXT = """HloModule jit_step, is_scheduled=true

%body.1 (p: (s32[], bf16[8,16])) -> (s32[], bf16[8,16]) {
  %p = (s32[]{:T(128)}, bf16[8,16]{1,0:T(8,128)(2,1)}) parameter(0)
  %x = bf16[8,16]{1,0:T(8,128)(2,1)} get-tuple-element(%p), index=1
  %all-gather.1 = bf16[8,16]{1,0:T(8,128)(2,1)S(1)} all-gather(%x), channel_id=1, replica_groups=[2,4]<=[8], dimensions={0}
  %dot.1 = bf16[8,16]{1,0:T(8,128)(2,1)} fusion(%x, %all-gather.1), kind=kOutput, calls=%fused_dot, backend_config={"window_config":{"estimated_cycles":"1000"}}
  ROOT %out = (s32[]{:T(128)}, bf16[8,16]{1,0:T(8,128)(2,1)}) tuple(%x, %dot.1)
}

%fused_dot (a: bf16[8,16], b: bf16[8,16]) -> bf16[8,16] {
  %a = bf16[8,16]{1,0:T(8,128)(2,1)} parameter(0)
  %b = bf16[8,16]{1,0:T(8,128)(2,1)S(1)} parameter(1)
  ROOT %conv = bf16[8,16]{1,0:T(8,128)(2,1)} convolution(%a, %b), dim_labels=bf_io->bf
}

%condition.1 (p.1: (s32[], bf16[8,16])) -> pred[] {
  %three = s32[]{:T(128)} constant(3)
  %p.1 = (s32[]{:T(128)}, bf16[8,16]{1,0:T(8,128)(2,1)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%p.1), index=0
  ROOT %lt = pred[]{:T(512)} compare(%i, %three), direction=LT
}

%fused_update (c: f32[4,8], d: f32[1,8]) -> f32[4,8] {
  %c = f32[4,8]{1,0:T(8,128)} parameter(0)
  %d = f32[1,8]{1,0:T(8,128)} parameter(1)
  %zero = s32[]{:T(128)} constant(0)
  ROOT %dus = f32[4,8]{1,0:T(8,128)} dynamic-update-slice(%c, %d, %zero, %zero)
}

%fused_cut (e: f32[4,8]) -> f32[1,8] {
  %e = f32[4,8]{1,0:T(8,128)} parameter(0)
  %nil = s32[]{:T(128)} constant(0)
  ROOT %ds = f32[1,8]{1,0:T(8,128)S(1)} dynamic-slice(%e, %nil, %nil), dynamic_slice_sizes={1,8}
}

%start_piece (f: bf16[2,16]) -> bf16[16,16] {
  %f = bf16[2,16]{1,0:T(8,128)(2,1)} parameter(0)
  ROOT %all-gather.2 = bf16[16,16]{1,0:T(8,128)(2,1)} all-gather(%f), channel_id=7, replica_groups=mesh['axis_0'=8] {'axis_0'}, dimensions={0}
}

%scatter_piece (g: f32[16,16]) -> f32[2,16] {
  %g = f32[16,16]{1,0:T(8,128)} parameter(0)
  %sum = f32[16,16]{1,0:T(8,128)} all-reduce(%g), channel_id=9, replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=%add
  %where = s32[]{:T(128)} constant(0)
  ROOT %part = f32[2,16]{1,0:T(8,128)} dynamic-slice(%sum, %where, %where), dynamic_slice_sizes={2,16}
}

%keep (h: f32[4,8]) -> f32[4,8] {
  ROOT %h = f32[4,8]{1,0:T(8,128)} parameter(0)
}

%change (k: f32[4,8]) -> f32[4,8] {
  %k = f32[4,8]{1,0:T(8,128)} parameter(0)
  ROOT %neg = f32[4,8]{1,0:T(8,128)} negate(%k), backend_config={"window_config":{"estimated_cycles":"70"}}
}

ENTRY %main (arg: bf16[8,16], state: f32[4,8]) -> f32[4,8] {
  %arg = bf16[8,16]{1,0:T(8,128)(2,1)} parameter(0)
  %state = f32[4,8]{1,0:T(8,128)} parameter(1)
  %begin = (s32[]{:T(128)}, bf16[8,16]{1,0:T(8,128)(2,1)}) tuple(%arg, %arg)
  %loop = (s32[]{:T(128)}, bf16[8,16]{1,0:T(8,128)(2,1)}) while(%begin), condition=%condition.1, body=%body.1
  %row = f32[1,8]{1,0:T(8,128)S(1)} fusion(%state), kind=kLoop, calls=%fused_cut, backend_config={"window_config":{"estimated_cycles":"5"}}
  %stack = f32[4,8]{1,0:T(8,128)} fusion(%state, %row), kind=kLoop, calls=%fused_update, backend_config={"window_config":{"estimated_cycles":"10"}}
  %piece.1 = bf16[16,16]{1,0:T(8,128)(2,1)} fusion(%arg), kind=kCustom, calls=%start_piece
  %piece.2 = bf16[16,16]{1,0:T(8,128)(2,1)} fusion(%arg), kind=kCustom, calls=%start_piece
  %all-reduce-scatter.1 = f32[2,16]{1,0:T(8,128)} fusion(%state), kind=kCustom, calls=%scatter_piece
  ROOT %cond = f32[4,8]{1,0:T(8,128)} conditional(%arg, %stack, %stack), branch_computations={%keep, %change}
}
"""


def test_costs_by_hand():
    costs = program.read(TEXT)
    assert costs.matmul_cycles == 3 * 1000
    assert costs.other_cycles == 5 + 10 + 70
    # A row cut out (32 bytes), the same written back from HBM (32 read, 32 written), a negation (128 + 128).
    assert costs.other_bytes == 32 + 64 + 256
    assert costs.windowed == 0
    assert program.read(TEXT.replace("%keep", "%windowed_dot_general_body.1")).windowed == 1


def test_collectives_by_hand():
    gather, far, scatter = sorted(program.read(TEXT).collectives, key=lambda c: -c.count)
    assert (gather.kind, gather.bytes, gather.count, gather.overlapped) == (
        "all-gather",
        8 * 16 * 2,
        3,
        False,
    )
    assert gather.groups.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert (far.kind, far.bytes, far.count, far.overlapped) == ("all-gather", 16 * 16 * 2, 1, True)
    assert (scatter.kind, scatter.bytes, scatter.overlapped) == ("reduce-scatter", 16 * 16 * 4, False)
    assert far.groups.shape == scatter.groups.shape == (1, 8)


def test_a_loop_of_unknown_length_counts_once_and_is_told():
    assert program.read(TEXT).uncounted_cycles == 0
    text = TEXT.replace("direction=LT", "direction=GT").replace("%three = s32[]", "%three = u32[]")
    costs = program.read(text)
    assert costs.matmul_cycles == costs.uncounted_cycles == 1000


def test_another_text_is_refused():
    with pytest.raises(ValueError, match="no ENTRY"):
        program.read("HloModule x")


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("replica_groups={{0,2},{1,3}}, x=1", [[0, 2], [1, 3]]),
        ("replica_groups=[2,2]<=[4]", [[0, 1], [2, 3]]),
        ("replica_groups=[2,2]<=[2,2]T(1,0)", [[0, 2], [1, 3]]),
        ("replica_groups=mesh['a'=2,'b'=3] {'b'}", [[0, 1, 2], [3, 4, 5]]),
        ("replica_groups=mesh['a'=2,'b'=3] {'a'}", [[0, 3], [1, 4], [2, 5]]),
        ("replica_groups=mesh['a'=2,'b'=2] {'a','b'}", [[0, 1, 2, 3]]),
        ("replica_groups=mesh['a'=8] {'a':(2)2}", [[0, 2], [1, 3], [4, 6], [5, 7]]),
    ],
)
def test_groups(text, groups):
    assert np.array_equal(program.parse_groups(text), groups)


def test_groups_said_otherwise():
    assert program.parse_groups("replica_groups={}") is None
    assert program.parse_groups("replica_groups={{0},{1,2}}") is None
    assert program.parse_groups("replica_groups=mesh['a'=8] {'z'}") is None


def test_bytes_of_shapes():
    assert (
        program.array_bytes("(f32[2,3]{1,0}, bf16[4]{0:T(128)(2,1)}, s4[8]{0}, pred[]{:T(512)})")
        == 24 + 8 + 4 + 1
    )
    assert program.array_bytes("f32[2,3]{1,0:T(8,128)S(1)}") == 0
    assert program.array_bytes("f32[2,3]{1,0:T(8,128)S(1)}", anywhere=True) == 24
    assert program.array_bytes("f8e4m3fn[16]{0}") == 16
