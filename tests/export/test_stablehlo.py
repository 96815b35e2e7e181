"""StableHLO folders: the logits of the model, with jax alone."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from tests.export.tiny_models import NAMES, NORMALIZATION, assert_same, images, logits_of, tiny
from vit_jax.export import load_stablehlo, parity, write_stablehlo


@pytest.mark.parametrize(
    "fields", [{"pool": "map"}, {"scan": True, "dtype": "bfloat16", "posemb": "sincos2d"}]
)
def test_logits(fields, tmp_path):
    model, params = tiny(**fields)
    write_stablehlo(model, params, tmp_path / "out")
    program = load_stablehlo(tmp_path / "out")
    reference = logits_of(model, params, 3)
    for batch in (1, 3):
        other = np.asarray(program(images(model, batch)))
        assert other.dtype == np.float32 and other.shape == (batch, 3)
        # In bfloat16 the compiler may fuse, and so round, in other places.
        tolerance = 2e-2 if "dtype" in fields else 1e-5
        assert parity(reference[:batch], other)[1] <= tolerance


def test_runs_by_its_own_recipe_without_this_package(tmp_path):
    model, params = tiny()
    folder = tmp_path / "out"
    given = {"normalization": NORMALIZATION, "class_names": NAMES, "metadata": {"source": "a run"}}
    write_stablehlo(model, params, folder, **given)
    assert sorted(os.listdir(folder)) == ["metadata.json", "model.stablehlo", "params.safetensors"]
    described = json.loads((folder / "metadata.json").read_text(encoding="utf-8"))
    assert described["class_names"] == NAMES and described["mean"] == NORMALIZATION[0]
    assert described["platforms"] == ["cpu", "cuda", "tpu"] and described["source"] == "a run"
    assert (folder / "model.stablehlo").stat().st_size < 100_000  # parameters are beside it
    np.save(tmp_path / "images.npy", images(model, 2))
    code = [
        "import sys, numpy as np",
        f"images = np.load({str(tmp_path / 'images.npy')!r})",
        *described["how_to_load"],
        "assert 'vit_jax' not in sys.modules",
        f"np.save({str(tmp_path / 'logits.npy')!r}, logits)",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(code)], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert_same(logits_of(model, params, 2), np.load(tmp_path / "logits.npy"))
