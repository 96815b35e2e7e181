"""Checkpoints: bit-equal onto any mesh, damage of every kind noticed and named, nothing lost by a kill."""

import json
import logging
import resource
import shutil
import signal
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from vit_jax.checkpoint import (
    CheckpointDamaged,
    CheckpointFailed,
    Checkpoints,
    Reader,
    StateMismatch,
    free_disk_warning,
)
from vit_jax.errors import UsageError

P = PartitionSpec


def _mesh(count):
    auto = (jax.sharding.AxisType.Auto,)
    return jax.make_mesh((count,), ("fsdp",), axis_types=auto, devices=jax.devices()[:count])


def _shardings(tree, mesh):
    def one(x):
        return NamedSharding(mesh, P("fsdp") if x.ndim and x.shape[0] % 8 == 0 else P())

    return jax.tree.map(one, tree)


def _state(seed=0, mesh=None):
    rng = np.random.default_rng(seed)
    params = {
        "head": {"kernel": jnp.asarray(rng.normal(size=(16, 4)), jnp.float32), "bias": jnp.zeros(4)},
        "norm": {"scale": jnp.asarray(rng.normal(size=8), jnp.bfloat16)},
    }
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3, mu_dtype=jnp.bfloat16))
    state = {"params": params, "opt_state": optimizer.init(params), "step": jnp.int32(seed)}
    return jax.device_put(state, _shardings(state, mesh or _mesh(8)))


def _target(state, mesh):
    return jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), state, _shardings(state, mesh)
    )


def _assert_equal(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def _open(folder, keep=5, every=None):
    return Checkpoints(folder, keep=keep, keep_every_steps=every)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with steps 10, 20 and 30, states of seed 10, 20 and 30. Copy before damaging it."""
    folder = tmp_path_factory.mktemp("saved") / "checkpoints"
    checkpoints = _open(folder)
    for step in (10, 20, 30):
        assert checkpoints.save(step, _state(step))
    checkpoints.close()
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return Path(shutil.copytree(saved, tmp_path / "checkpoints"))


def _restore(folder):
    checkpoints = _open(folder)
    return checkpoints.restore_latest(_target(_state(), _mesh(8)))


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_restores_onto_any_number_of_devices(saved, count):
    mesh = _mesh(count)
    target = _target(_state(), mesh)
    step, state = _open(saved).restore_latest(target)
    assert step == 30
    _assert_equal(state, _state(30))
    assert jax.tree.map(lambda x: x.sharding, state) == _shardings(state, mesh)
    kernel = state["params"]["head"]["kernel"]
    assert {shard.data.shape for shard in kernel.addressable_shards} == {(16 // count, 4)}


def test_nothing_saved_is_none(tmp_path, caplog):
    assert _restore(tmp_path / "checkpoints") is None
    assert not caplog.records


def test_a_state_given_away_right_after_save_is_saved_as_it_was(tmp_path):
    checkpoints = _open(tmp_path / "checkpoints", keep=9)
    state = _state(1)
    shardings = _shardings(state, _mesh(8))
    advance = jax.jit(lambda s: jax.tree.map(lambda x: x + 1, s), donate_argnums=0, out_shardings=shardings)
    copies = {}
    for step in range(1, 5):
        copies[step] = jax.tree.map(lambda x: jnp.array(np.array(x)), state)
        checkpoints.save(step, state)
        for _ in range(3):
            state = advance(state)
    checkpoints.wait()
    for step, copy in copies.items():
        _assert_equal(checkpoints.restore(step, _target(state, _mesh(8))), copy)
    checkpoints.close()


def test_keeps_the_newest_and_every_so_many(tmp_path):
    checkpoints = _open(tmp_path / "checkpoints", keep=2, every=40)
    for step in range(10, 80, 10):
        checkpoints.save(step, _state(step))
    checkpoints.wait()
    assert checkpoints.steps() == [40, 60, 70]
    assert checkpoints.latest_step() == 70
    checkpoints.close()


def test_a_step_is_saved_once_and_never_below_the_newest(folder):
    checkpoints = _open(folder)
    assert checkpoints.save(30, _state(99)) is False
    with pytest.raises(UsageError, match="holds step 30, newer than step 7"):
        checkpoints.save(7, _state(7))
    _assert_equal(checkpoints.restore(30, _target(_state(), _mesh(8))), _state(30))
    checkpoints.close()


def _delete(path):
    path.unlink()


def _truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def _flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _files(step):
    return sorted(str(path.relative_to(step)) for path in step.rglob("*") if path.is_file())


@pytest.mark.parametrize("damage", [_delete, _truncate, _flip])
def test_damage_to_any_file_is_noticed(saved, tmp_path, damage, caplog):
    names = _files(saved / "30")
    assert len(names) > 5
    if damage is not _delete:  # these two hold marks and times; their presence is what counts
        names = [name for name in names if name not in ("commit_success.txt", "_CHECKPOINT_METADATA")]
    for number, name in enumerate(names):
        folder = Path(shutil.copytree(saved, tmp_path / str(number) / "checkpoints"))
        if (folder / "30" / name).stat().st_size == 0 and damage is not _delete:
            continue
        damage(folder / "30" / name)
        caplog.clear()
        step, state = _restore(folder)
        assert step == 20, name
        _assert_equal(state, _state(20))
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert record.getMessage().startswith("checkpoint step 30 damaged: ")
        assert record.getMessage().endswith("; using step 20")
        assert "\n" not in record.getMessage()


def test_wrong_content_is_noticed_even_where_the_files_are_as_recorded(folder, caplog):
    # As if a bit had flipped in memory before it was written, or in a file too large to be hashed.
    shutil.rmtree(folder / "30" / "state")
    shutil.copytree(folder / "20" / "state", folder / "30" / "state")
    _rewrite_manifest(folder / "30")
    assert _restore(folder)[0] == 20
    assert "differs from its digest" in caplog.text


def _rewrite_manifest(step):
    from etils import epath

    from vit_jax import manifest

    folder = epath.Path(step)
    old = manifest.read(folder)
    manifest.write(
        folder,
        step=old.step,
        arrays=old.arrays,
        value=None,
        later=("_CHECKPOINT_METADATA", "commit_success.txt"),
    )


def test_damaged_steps_are_moved_aside_and_saved_again(saved, folder, caplog):
    _flip(folder / "30" / "digests.json")
    (folder / "20" / "digests.json").unlink()
    checkpoints = _open(folder)
    step, _ = checkpoints.restore_latest(_target(_state(), _mesh(8)))
    assert step == 10
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "checkpoint step 30 damaged",
        "checkpoint step 20 damaged",
    ]
    assert all(record.getMessage().endswith("; using step 10") for record in caplog.records)
    aside = folder.parent / "checkpoints_damaged"
    assert sorted(path.name for path in aside.iterdir()) == ["20-1", "30-1"]
    assert _files(aside / "30-1") == _files(saved / "30")
    assert checkpoints.save(20, _state(20)) and checkpoints.save(30, _state(30))
    checkpoints.close()
    caplog.clear()
    assert _restore(folder)[0] == 30
    assert not caplog.records


def test_a_reader_moves_nothing(folder):
    _flip(folder / "30" / "digests.json")
    assert Reader(folder).restore_latest(_target(_state(), _mesh(8)))[0] == 20
    assert (folder / "30").exists() and not (folder.parent / "checkpoints_damaged").exists()


def test_no_intact_step_is_an_error_not_a_new_start(folder):
    for step in (10, 20, 30):
        (folder / str(step) / "digests.json").unlink()
    with pytest.raises(CheckpointDamaged, match=r"no intact checkpoint in .*step 30: incomplete.*step 10: "):
        _restore(folder)
    assert (folder / "30").exists()


def test_one_step_by_number(folder):
    _flip(folder / "30" / "state" / "_METADATA")
    target = _target(_state(), _mesh(8))
    _assert_equal(Reader(folder).restore(20, target), _state(20))
    with pytest.raises(CheckpointDamaged, match=r"step 30 .*_METADATA was changed .*other steps: 10, 20"):
        Reader(folder).restore(30, target)
    with pytest.raises(CheckpointDamaged, match=r"step 5 .*missing"):
        Reader(folder).restore(5, target)


def test_another_model_is_an_error_that_shows_the_difference(folder, caplog):
    state = _state()
    state["params"]["head"] = {"kernel": jnp.zeros((16, 5)), "extra": jnp.zeros(2)}
    state["params"]["norm"]["scale"] = jnp.zeros(8)
    with pytest.raises(StateMismatch) as error:
        _open(folder).restore_latest(_target(state, _mesh(8)))
    text = str(error.value)
    assert "params/head/bias: only in the checkpoint, float32[4]" in text
    assert "params/head/extra: not in the checkpoint, needs float32[2]" in text
    assert "params/head/kernel: float32[16, 4] in the checkpoint, needs float32[16, 5]" in text
    assert "params/norm/scale: bfloat16[8] in the checkpoint, needs float32[8]" in text
    assert "opt_state" not in text
    assert not caplog.records and (folder / "30").exists()


def test_arrays_are_read_without_knowing_the_structure(folder):
    step, arrays = Reader(folder).restore_arrays()
    assert step == 30
    assert sorted(arrays) == ["opt_state", "params", "step"]
    _, params = Reader(folder).restore_arrays(20, subtree="params")
    _assert_equal(params, jax.tree.map(np.asarray, _state(20)["params"]))
    assert all(isinstance(x, np.ndarray) for x in jax.tree.leaves(params))
    with pytest.raises(UsageError, match=r"no 'ema' \(it has: opt_state, params, step\)"):
        Reader(folder).restore_arrays(subtree="ema")
    with pytest.raises(UsageError, match="no checkpoint in"):
        Reader(folder / "none").restore_arrays()


def test_best_keeps_one_and_compares_after_a_restart(tmp_path):
    best = _open(tmp_path / "best", keep=1)
    assert not best.save_best(5, _state(5), float("nan"))
    assert best.save_best(10, _state(10), 0.5)
    assert not best.save_best(20, _state(20), 0.5)
    assert best.save_best(30, _state(30), 0.75)
    best.close()
    again = _open(tmp_path / "best", keep=1)
    assert not again.save_best(25, _state(25), 0.7)
    assert again.steps() == [30]
    # Gone back to an earlier step, as after damage: an older step, or the same one, may be best now.
    assert again.save_best(25, _state(25), 0.8)
    again.wait()
    assert again.steps() == [25]
    assert again.save_best(25, _state(26), 0.9)
    again.close()
    _assert_equal(Reader(tmp_path / "best").restore(25, _target(_state(), _mesh(8))), _state(26))


def test_a_full_disk_is_one_clear_error_and_costs_no_earlier_step(folder):
    checkpoints = _open(folder)
    big = {"x": jnp.asarray(np.random.default_rng(0).normal(size=(64, 1024)), jnp.float32)}
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, hard))  # a real failing write, as by a full disk
    try:
        with pytest.raises(CheckpointFailed) as error:
            checkpoints.save(40, big)
            checkpoints.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert "saving checkpoint step 40" in str(error.value) and "failed: File too large (" in str(error.value)
    assert "intact: 10, 20, 30" in str(error.value) and "\n" not in str(error.value)
    checkpoints.close()
    again = _open(folder)
    assert again.restore_latest(_target(_state(), _mesh(8)))[0] == 30
    assert again.save(40, _state(40))
    again.close()
    assert _restore(folder)[0] == 40


def test_an_error_in_the_background_is_raised_by_check_errors(folder, monkeypatch):
    checkpoints = _open(folder)

    def no_space(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vit_jax.checkpoint.manifest.write", no_space)
    checkpoints.check_errors()
    checkpoints.save(40, _state(40))
    with pytest.raises(CheckpointFailed, match=r"step 40 .*No space left on device"):
        for _ in range(200):
            checkpoints.check_errors()
            signal.sigtimedwait([], 0.05)
    checkpoints.close()
    assert Reader(folder).steps() == [10, 20, 30]


def test_a_disk_with_little_room_warns(tmp_path, caplog):
    free = shutil.disk_usage(tmp_path).free
    assert free_disk_warning(tmp_path / "runs" / "a", free // 4) is None
    assert "less than two checkpoints" in free_disk_warning(tmp_path / "runs" / "a", free)
    assert len(caplog.records) == 1


def test_the_record_is_strict_json_with_a_line_per_array(saved):
    record = json.loads((saved / "30" / "digests.json").read_text())
    assert record["step"] == 30
    kernel = record["arrays"]["params/head/kernel"]
    assert (kernel["shape"], kernel["dtype"], len(kernel["digest"])) == ([16, 4], "float32", 16)
    assert set(record["files"]) | {"digests.json"} == set(_files(saved / "30"))
