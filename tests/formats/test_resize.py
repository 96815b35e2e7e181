"""Resizing position tables by the four rules in use."""

import numpy as np
import pytest

from tests.golden_layouts import load_npz
from vit_jax.errors import UsageError
from vit_jax.formats.resize import resize

TORCH = {
    "torch_bicubic_noaa": "bicubic",
    "timm_bicubic_antialias": "bicubic_antialias",
    "torch_bilinear_noaa": "bilinear",
}


def _grids(name):
    old, new = name.split("_to_")
    return tuple(map(int, old.split("x"))), tuple(map(int, new.split("x")))


def test_zoom_equals_google(golden):
    arrays = load_npz(golden / "posemb_zoom.npz")
    names = {name.rsplit("/", 1)[0] for name in arrays if name.startswith("zoom_order1/")}
    assert len(names) >= 5
    for name in names:
        old, new = _grids(name.removeprefix("zoom_order1/"))
        start = arrays[f"{name}/in"].shape[1] - old[0] * old[1]
        table, expected = arrays[f"{name}/in"][:, start:], arrays[f"{name}/out"][:, start:]
        np.testing.assert_allclose(resize(table, old, new, "zoom"), expected, atol=1e-5)


def test_the_torch_rules(golden):
    arrays = load_npz(golden / "posemb_torch.npz")
    names = sorted({name.split("/")[0] for name in arrays})
    assert len(names) >= 4
    for name in names:
        for key, mode in TORCH.items():
            if f"{name}/{key}" in arrays:
                ours = resize(arrays[f"{name}/in"], *_grids(name), mode)
                np.testing.assert_allclose(ours, arrays[f"{name}/{key}"].reshape(ours.shape), atol=1e-5)


def test_timms_reader_of_npz_files(golden):
    """Half-pixel bilinear on Google's own file, which Google resizes otherwise."""
    file = load_npz(golden / "timm/posemb_48_to_64_npz_loader.npz")
    table = load_npz(golden / "vt/pretrained_48px.npz")["Transformer/posembed_input/pos_embedding"]
    expected = next(a for a in file.values() if a.shape == (1, 65, table.shape[-1]))
    np.testing.assert_allclose(resize(table[:, 1:], (6, 6), (8, 8), "bilinear"), expected[:, 1:], atol=1e-5)
    assert np.abs(resize(table[:, 1:], (6, 6), (8, 8), "zoom") - expected[:, 1:]).max() > 0.1


@pytest.mark.parametrize("mode", ["zoom", "bicubic", "bicubic_antialias", "bilinear"])
def test_a_constant_table_stays_constant_and_the_same_grid_untouched(mode):
    table = np.full((1, 15, 4), 0.37, np.float32)
    np.testing.assert_allclose(resize(table, (3, 5), (7, 2), mode), 0.37, rtol=1e-6)
    np.testing.assert_allclose(resize(table[:, :1], (1, 1), (3, 2), mode), 0.37, rtol=1e-6)
    odd = np.random.default_rng(0).normal(size=(1, 15, 4)).astype(np.float32)
    assert resize(odd, (3, 5), (3, 5), mode) is odd


def test_an_unknown_mode_lists_the_known_ones():
    with pytest.raises(UsageError, match=r"bicubick.*bicubic"):
        resize(np.zeros((1, 1, 1)), (1, 1), (2, 2), "bicubick")
