"""Extraction: every example once and in order on any mesh; the cache; features that are no numbers."""

import errno
import logging

import jax
import numpy as np
import pytest

from tests.evaluators.fakes import NumberedSource, batches_of, lookup_step, state_of
from vit_jax import sharding
from vit_jax.data.source import SourceSubset
from vit_jax.errors import UsageError
from vit_jax.evaluators import feature_cache
from vit_jax.evaluators.feature_cache import FeatureCache, data_digest
from vit_jax.evaluators.features import Extractor, NotFinite
from vit_jax.evaluators.fewshot import FewShot
from vit_jax.evaluators.probes import Methods, Probe

N, D, CLASSES = 103, 6, tuple("abcdefg")


@pytest.fixture(scope="module")
def table():
    return np.random.default_rng(0).normal(size=(N, D)).astype(np.float32)


@pytest.fixture(scope="module")
def source():
    return NumberedSource(np.random.default_rng(1).integers(0, 7, N), CLASSES)


def extractor(mesh, batch=8, calls=None, on_bad_image="error", **options):
    step = lookup_step(mesh, "pre_logits")

    def counted(params, batch):
        if calls is not None:
            calls.append(1)
        return step(params, batch)

    return Extractor(counted, lambda s, k: batches_of(s, mesh, batch, k, on_bad_image), **options)


def mesh_of(devices):
    return sharding.make_mesh(-1, 1, 1, jax.devices()[:devices])


@pytest.mark.parametrize("devices", [1, 2, 8])
@pytest.mark.parametrize("batch", [1, 32, 103, 200])
def test_every_example_once_and_in_order(table, source, batch, devices):
    mesh = mesh_of(devices)
    found = extractor(mesh, -(-batch // devices) * devices)(state_of(table, mesh).params, source, 7)
    assert np.array_equal(found.rows, table) and found.rows.dtype == np.float32
    assert np.array_equal(found.labels, source.labels())
    assert np.array_equal(found.index, np.arange(N))


def test_the_mesh_changes_nothing(table, source):
    mesh = sharding.make_mesh(2, 2, 2, jax.devices())
    assert np.array_equal(extractor(mesh)(state_of(table, mesh).params, source, 7).rows, table)


def test_unreadable_images_are_missing(table):
    source = NumberedSource(np.zeros(20, int), "a", bad=(3, 16))
    mesh = mesh_of(2)
    found = extractor(mesh, on_bad_image="skip")(state_of(table, mesh).params, source, 1)
    assert found.index.tolist() == [i for i in range(20) if i not in (3, 16)]
    assert np.array_equal(found.rows, table[found.index])


def test_examples_with_nan_features_are_named(table, source):
    broken = table.copy()
    broken[[5, 77], 2] = np.nan, np.inf
    mesh = mesh_of(1)
    with pytest.raises(
        NotFinite, match=r"2 of 103 examples of fake@test aren't finite: image 5, image 77 \("
    ):
        extractor(mesh)(state_of(broken, mesh).params, source, 7)


def test_a_label_out_of_range_is_named(table):
    source = NumberedSource([0, 1, 2], "ab")
    mesh = mesh_of(1)
    with pytest.raises(UsageError, match=r"image 2 has label 2, outside 0 \.\.\. 1"):
        extractor(mesh)(state_of(table, mesh).params, source, 2)


def test_a_subset_is_computed_alone_and_few_shot_gives_the_same(table):
    rng = np.random.default_rng(2)
    train, test = (
        NumberedSource(rng.integers(0, 3, 100), "abc"),
        NumberedSource(rng.integers(0, 3, 40), "abc"),
    )
    mesh, calls = mesh_of(1), []
    state = state_of(table, mesh)
    method = FewShot((1, 5), 2, 2.0**10)
    wanted = method.wanted(train.labels(), 3)
    found = Probe(extractor(mesh, calls=calls), train, test, Methods(fewshot=method)).run(state)
    assert len(calls) == -(-len(wanted) // 8) + 5
    whole = extractor(mesh)
    expected = method.measure(
        whole(state.params, train, 3),
        whole(state.params, test, 3),
        labels=train.labels(),
        classes=tuple("abc"),
    )
    assert found == {"count": 40} | expected


def test_data_with_several_labels_is_refused(table):
    several = NumberedSource(np.eye(3, dtype=np.float32), "abc")
    with pytest.raises(UsageError, match="several labels"):
        Probe(None, several, several, Methods())


# ---- the cache

ABOUT = {"preprocess": "decode", "representation": "pre_logits"}


@pytest.fixture
def cached(table, source, tmp_path):
    """A function that extracts with the cache in tmp_path; returns the features and the batches computed."""

    def run(rows=table, data=source, about=ABOUT, devices=1):
        mesh, calls = mesh_of(devices), []
        extract = extractor(mesh, calls=calls, cache=FeatureCache(tmp_path / "cache"), about=about)
        return extract(state_of(rows, mesh).params, data, 7), len(calls)

    return run


def test_the_cache_spares_the_second_pass_on_another_mesh_too(cached, table):
    first, computed = cached()
    assert computed == 13
    again, computed = cached(devices=8)
    assert computed == 0
    for name in ("rows", "labels", "index"):
        a, b = getattr(first, name), getattr(again, name)
        assert np.array_equal(a, b) and a.dtype == b.dtype


def test_anything_else_is_another_entry(cached, table, source):
    cached()
    other_labels = NumberedSource((source.labels() + 1) % 7, CLASSES)
    for change in (
        {"rows": np.nextafter(table, np.inf)},
        {"data": other_labels},
        {"data": SourceSubset(source, np.arange(N)[::-1])},
        {"about": ABOUT | {"preprocess": "decode|flip_lr"}},
        {"about": ABOUT | {"representation": "cls"}},
    ):
        assert cached(**change)[1] == 13, change
        assert cached(**change)[1] == 0, change


def test_the_data_digest_is_of_content_not_of_names(source):
    renamed = NumberedSource(source.labels(), CLASSES, [f"elsewhere/{i}" for i in range(N)])
    assert data_digest(renamed) == data_digest(source)
    assert data_digest(SourceSubset(source, np.arange(N - 1))) != data_digest(source)


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "text"])
def test_a_damaged_file_is_named_and_computed_again(cached, tmp_path, table, damage, caplog):
    cached()
    (path,) = (tmp_path / "cache").iterdir()
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    path.write_bytes({"flip": bytes(flipped), "cut": whole[:-50], "empty": b"", "text": b"no"}[damage])
    with caplog.at_level(logging.WARNING):
        found, computed = cached()
    assert computed == 13 and np.array_equal(found.rows, table)
    assert f"feature cache {path} damaged: " in caplog.text
    assert cached()[1] == 0  # mended


def test_a_consistent_file_of_other_numbers_is_damaged_too(cached, tmp_path, caplog):
    """A flip that the archive's own checksum doesn't see."""
    cached()
    (path,) = (tmp_path / "cache").iterdir()
    with np.load(path) as file:
        arrays = dict(file)
    arrays["rows"][4, 4] += 1
    with path.open("wb") as file:
        np.savez(file, **arrays)
    with caplog.at_level(logging.WARNING):
        assert cached()[1] == 13
    assert "its content was changed" in caplog.text


def test_a_full_disk_is_a_warning(cached, tmp_path, table, monkeypatch, caplog):
    def full(file, **arrays):
        file.write(b"part")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(feature_cache.np, "savez", full)
    with caplog.at_level(logging.WARNING):
        found, _ = cached()
    assert np.array_equal(found.rows, table)
    assert "can't be written: No space left on device; going on without it" in caplog.text
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_folder_that_can_not_be_made_is_a_warning(cached, tmp_path, table, caplog):
    (tmp_path / "cache").write_text("a file")
    with caplog.at_level(logging.WARNING):
        assert np.array_equal(cached()[0].rows, table)
    assert "can't be written" in caplog.text
