"""The benchmarks measure what they say, beside the baselines they name."""

import json
import re
import threading
import time

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import bench
from vit_jax.benchmarks import measure, step, timm_peer
from vit_jax.benchmarks.jpegs import make_jpegs
from vit_jax.benchmarks.plain_vit import PlainViT, plain_steps
from vit_jax.errors import UsageError
from vit_jax.models import create_model
from vit_jax.models.variants import variant_fields

# Against the variant mu: one layer of width 32.
STEP = ["step", "--models=mu/4", "--image-size=8", "--batch=8", "--repeats=2", "--devices=1", "--json"]


@pytest.fixture(autouse=True)
def short_turns(monkeypatch):
    monkeypatch.setattr("vit_jax.benchmarks.step._TURN_SECONDS", 0.01)


def run(capsys, *argv):
    assert bench.main(list(argv)) == 0
    return json.loads(capsys.readouterr().out)


def test_cost_counts_the_time_of_all_threads_but_not_sleep():
    def busy():
        end = time.thread_time() + 0.1
        while time.thread_time() < end:
            pass

    def both():
        thread = threading.Thread(target=busy)
        thread.start()
        busy()
        thread.join()

    assert measure.cost(both).cpu >= 0.2
    slept = measure.cost(lambda: time.sleep(0.2))
    assert slept.wall >= 0.2 and slept.cpu < 0.1


def test_candidates_take_turns_and_each_begins_once():
    order = []
    costs = measure.rounds({name: lambda n=name: order.append(n) for name in "abc"}, repeats=3)
    assert "".join(order) == "abcbcacab"
    assert {name: len(c) for name, c in costs.items()} == {"a": 3, "b": 3, "c": 3}


def test_spread_is_half_the_distance_of_the_quartiles():
    assert measure.spread([9.0, 10.0, 10.0, 10.0, 11.0]) == 0
    assert measure.spread([8.0, 9.0, 10.0, 11.0, 12.0]) == pytest.approx(0.1)


def test_plain_model_is_the_same_model():
    """As many parameters (it has one position more, the class token's), and the published outputs' shape."""
    fields = variant_fields("mu/4")
    ours = create_model("mu/4", num_classes=7, image_size=8, posemb_cls=True)
    plain = PlainViT(**fields, num_classes=7, dtype=jnp.float32)
    images = jnp.zeros((2, 8, 8, 3))
    count = [
        sum(x.size for x in jax.tree.leaves(jax.eval_shape(m.init, jax.random.key(0), images)["params"]))
        for m in (ours, plain)
    ]
    assert count[0] == count[1]


def test_plain_step_learns_the_batch():
    model = PlainViT(**variant_fields("mu/4"), num_classes=4, dtype=jnp.float32)
    state, train, forward = plain_steps(model, image_size=8, learning_rate=3e-3)
    images = np.random.default_rng(0).integers(0, 256, (8, 8, 8, 3), np.uint8)
    labels = np.arange(8, dtype=np.int32) % 4
    before, _ = forward(state, images, labels)
    for _ in range(30):
        state, _ = train(state, images, labels)
    after, correct = forward(state, images, labels)
    assert after < before / 4 and correct == 8


def test_step_rows(capsys):
    rows = run(capsys, *STEP)
    rows = [row for row in rows if row["candidate"] != "timm"]
    assert [row["candidate"] for row in rows] == ["plain", "ours"] * 2
    assert [row["phase"] for row in rows] == ["forward"] * 2 + ["train"] * 2
    for row in rows:
        assert row["cpu_ms"] > 0 and row["mfu"] is None
        assert row["img_per_sec"] == pytest.approx(1e3 / row["wall_ms"])
        assert (row["ratio"] is None) == (row["candidate"] == "plain")


def test_step_of_a_config_beside_a_changed_one(capsys):
    rows = run(capsys, "step", "--config=base", "--config.model.name=mu/4", "--config.global_batch=16",
               "--vs=model.gelu=erf,model.pool=gap", "--image-size=8", "--devices=1", "--no-peers", "--repeats=1",
               "--json")  # fmt: skip
    expected = [("mu/4", 16, "ours"), ("mu/4", 16, "model.gelu=erf,model.pool=gap")]
    assert [(row["model"], row["batch"], row["candidate"]) for row in rows] == expected * 2


def test_step_table_names_what_is_absent(capsys, monkeypatch):
    row = dict.fromkeys(step._COLUMNS) | {
        "model": "mu/4",
        "candidate": "ours",
        "noise": 0.0123,
        "ratio": 0.987,
    }
    monkeypatch.setattr(step, "_bench", lambda model, jobs, flags: [row])
    assert bench.main(STEP[:-1]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "mu/4" in lines
    assert next(line for line in lines if line.startswith("ours")).split()[-4:] == ["1.2", "%", "0.987", "-"]
    assert (f"timm: absent ({timm_peer.missing()})" in lines) == (timm_peer.missing() is not None)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["step", "--models=Q/16"], "unknown model 'Q/16'"),
        (["step", "--models=mu/4,R50x1"], "no plain ViT to compare R50x1 with"),
        (["step", "--models=R50+B/16"], "no plain ViT to compare R50+B/16 with"),
        ([*STEP, "--vs=model.scam=true"], "model.scam"),
        ([*STEP, "--vs=model.scan=maybe"], "maybe"),
        ([*STEP, "--repeats=0"], "--repeats is 0"),
        (["step", "--models=Ti/16", "--image-size=30"], "30"),
        (["input", "folder:/nowhere"], "no such folder"),
        (["input", "--preprocess=decode|inseption_crop(224)"], "inception_crop"),
        (["input", "--batch=0"], "--batch is 0"),
        (["input", "--augment", "flip_lr", "randaugment"], "unknown step 'randaugment'"),
        (["input", "--augment", "decode|flip_lr"], "'decode|flip_lr' decodes"),
        (["stepp"], "did you mean 'step'"),
        ([], "no benchmark named"),
    ],
)
def test_refusals(argv, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        bench.main(argv)


def test_timm_names():
    assert timm_peer.timm_name("Ti/16") == "vit_tiny_patch16_224"
    assert timm_peer.timm_name("mu/4") is None


def test_made_jpegs_have_imagenets_size(tmp_path):
    make_jpegs(tmp_path, 3)
    paths = sorted(tmp_path.glob("photo/*.jpg"))
    assert [cv2.imread(str(p)).shape for p in paths] == [(375, 500, 3)] * 3
    assert 40_000 < np.mean([p.stat().st_size for p in paths]) < 200_000


def test_input_of_made_images(capsys):
    small = ["--images=16", "--batch=8", "--threads=2", "--repeats=1", "--json"]
    result = run(capsys, "input", "--preprocess=decode|inception_crop(32)|flip_lr", *small)
    assert result["images"] == 16 and result["threads"] == 2
    rows = {row["candidate"]: row for row in result["candidates"]}
    assert rows["pipeline"]["cpu_ms"] > rows["decode"]["cpu_ms"] > 0
    shares = {row["stage"]: row["share"] for row in result["stages"]}
    assert list(shares) == ["read", "rng", "decode", "crop", "resize", "FlipLR", "rest"]
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["decode"] == max(shares.values())
    assert "tf.data" in result["absent"]


def test_input_of_arrays_has_no_decode(capsys):
    result = run(
        capsys, "input", "digits@train", "--preprocess=decode", "--images=64", "--repeats=1", "--json"
    )
    assert [row["candidate"] for row in result["candidates"]] == ["pipeline"]
    assert result["absent"]["decode"] == "the source holds arrays"


def test_input_of_augmentations(capsys):
    small = ["--images=3", "--repeats=1", "--json"]
    rows = run(capsys, "input", "--augment", *small)["rows"]
    assert all(row["cpu_ms"] > 0 and row["ratio"] > 0 for row in rows)
    names = [row["step"].strip() for row in rows]
    assert names[0] == "decode" and "randaug(2, 10)" in names and "SolarizeAdd" in names
    assert len(names) == len(set(names)) == 26
    own = run(capsys, "input", *small, "--augment", "simple_random_crop(32)|flip_lr", "randaug(1, 5)")
    assert [row["step"] for row in own["rows"]] == [
        "decode",
        "simple_random_crop(32)|flip_lr",
        "randaug(1, 5)",
    ]
    assert bench.main(["input", "--images=2", "--repeats=1", "--augment", "flip_lr"]) == 0
    assert "CPU ms/img" in capsys.readouterr().out
