"""ReaL, V2, A, R and ObjectNet: what is scored, what is right, and every example once on any mesh."""

import json

import jax
import numpy as np
import pytest

from tests.data import odd_files
from tests.evaluators.fakes import NumberedSource, batches_of, lookup_step, state_of
from vit_jax import sharding
from vit_jax.data.sources import open_source
from vit_jax.errors import UsageError
from vit_jax.evaluators import imagenet
from vit_jax.evaluators.features import NotFinite
from vit_jax.evaluators.label_sets import LabelSets, Targets, hits

K = 1000


def wnids(seed=None):
    names = [f"n{i:08d}" for i in range(K)]
    return names if seed is None else [names[i] for i in np.random.default_rng(seed).permutation(K)]


def validation_names(numbers):
    return [f"folder/ILSVRC2012_val_{n:08d}.JPEG" for n in numbers]


def run(source, targets, logits, devices=1, batch=8):
    mesh = sharding.make_mesh(-1, 1, 1, jax.devices()[:devices])
    batches = batches_of(source, mesh, batch, len(source.classes))
    return LabelSets(source, batches, lookup_step(mesh), targets).run(state_of(logits, mesh))


@pytest.mark.parametrize("devices", [1, 2, 8])
@pytest.mark.parametrize("order_seed", [None, 3])
def test_real_counts_images_with_labels_once(tmp_path, devices, order_seed):
    """Against a count by hand: files in another order than their numbers, a third of the sets empty."""
    rng = np.random.default_rng(0)
    numbers = rng.permutation(53) + 1
    labels = [sorted(rng.choice(K, rng.integers(0, 3), replace=False).tolist()) for _ in range(53)]
    (tmp_path / "real.json").write_text(json.dumps(labels))
    classes = wnids(order_seed)
    logits = rng.normal(size=(53, K)).astype(np.float32)
    right = scored = 0
    standard = sorted(classes)
    for row, number in zip(logits, numbers, strict=True):
        names = {standard[i] for i in labels[number - 1]}
        if names and rng.random() < 0.5:  # half of them made right, with a label that isn't the first
            row[classes.index(sorted(names)[-1])] = 10
        scored += bool(names)
        right += classes[int(np.argmax(row))] in names
    assert 0 < right < scored < 53
    source = NumberedSource(np.zeros(53, int), ["any"], validation_names(numbers))
    targets = imagenet.real(source, str(tmp_path / "real.json"), imagenet.standard_order(classes, K))
    found = run(source, targets, logits, devices)
    assert (found["correct"], found["count"]) == (right, scored)
    assert found["accuracy"] == right / scored


@pytest.mark.parametrize("names", [["cat.jpg"], validation_names([3]), validation_names([0])])
def test_real_refuses_names_without_a_number(tmp_path, names):
    (tmp_path / "real.json").write_text("[[1], [2]]")
    source = NumberedSource([0], ["any"], names)
    with pytest.raises(UsageError, match="carries no number of 1 to 2"):
        imagenet.real(source, str(tmp_path / "real.json"), np.arange(K))


@pytest.mark.parametrize("text", ["{}", "[1]", "[[1000]]", "[[true]]", "no"])
def test_real_refuses_other_files(tmp_path, text):
    (tmp_path / "real.json").write_text(text)
    with pytest.raises(UsageError, match=r"real\.json"):
        imagenet.real(
            NumberedSource([0], ["any"], validation_names([1])), str(tmp_path / "real.json"), np.arange(K)
        )


def test_folders_of_v2_are_numbers(tmp_path):
    """The case numeric_classes: folders 1 ... 12 come in string order, 10 before 2."""
    folder = odd_files.unpack("numeric_classes", tmp_path)
    source = open_source(f"folder:{folder}@train", default_split="train")
    targets = imagenet.numbered(source, np.arange(K))
    assert [name for (name,) in targets.sets] == [int(source.classes[label]) for label in source.labels()]
    assert targets.sets[np.flatnonzero(source.labels() == source.classes.index("10"))[0]] == (10,)
    shuffled = wnids(5)
    order = imagenet.standard_order(shuffled, K)
    again = imagenet.numbered(source, order)
    assert [shuffled[a[0]] for a in again.sets] == [sorted(shuffled)[b[0]] for b in targets.sets]


def test_v2_refuses_other_folders_and_other_classifiers():
    with pytest.raises(UsageError, match="class 'cat' is no class number"):
        imagenet.numbered(NumberedSource([0, 1], ["7", "cat"]), np.arange(K))
    with pytest.raises(UsageError, match="class '1000' is no class number"):
        imagenet.numbered(NumberedSource([0], ["1000"]), np.arange(K))
    with pytest.raises(UsageError, match="the classifier has 10 classes"):
        imagenet.standard_order(None, 10)


@pytest.mark.parametrize("devices", [1, 8])
def test_a_and_r_compare_the_logits_of_their_classes_alone(devices):
    classes = wnids(1)
    own = [classes[5], classes[900], classes[17]]
    source = NumberedSource([0, 1, 2, 2], own)
    logits = np.zeros((4, K), np.float32)
    logits[:, 3] = 9  # the best of all, in none of the folders
    logits[[0, 1, 2], [5, 900, 17]] = 1
    logits[3, 5] = 1
    found = run(source, imagenet.subset(source, classes), logits, devices)
    assert found == {"accuracy": 0.75, "correct": 3, "count": 4}  # no top-5 among three


@pytest.mark.parametrize("classes", [None, ["cat"] * K, wnids()])
def test_a_and_r_need_the_classes_by_name(classes):
    with pytest.raises(UsageError, match=r"--classes=FILE"):
        imagenet.subset(NumberedSource([0], ["n99999999"]), classes)


def test_objectnet_scores_mapped_folders(tmp_path):
    path = tmp_path / "objectnet.json"
    path.write_text(json.dumps({"teapot": [849], "mug": [504, "cup"], "chair": [423]}))
    classes = [f"class {i}" for i in range(K)]
    classes[968] = "cup"
    source = NumberedSource([0, 1, 1, 2], ["fork", "mug", "teapot"])
    logits = np.zeros((4, K), np.float32)
    logits[[0, 1, 2, 3], [1, 968, 2, 848]] = 2
    logits[3, 849] = 1  # second
    logits[2, 504] = -1
    found = run(source, imagenet.mapped(source, str(path), classes, K), logits)
    assert found == {"accuracy": 1 / 3, "correct": 1, "count": 3, "top5_accuracy": 2 / 3}


@pytest.mark.parametrize(
    ("mapping", "says"),
    [
        ([], "no map"),
        ({"mug": [1000]}, r"\[1000\]"),
        ({"mug": ["no"]}, r"\['no'\]"),
        ({"pan": [1]}, "none of the folders"),
    ],
)
def test_objectnet_refuses_other_maps(tmp_path, mapping, says):
    (tmp_path / "map.json").write_text(json.dumps(mapping))
    with pytest.raises(UsageError, match=says):
        imagenet.mapped(NumberedSource([0], ["mug"]), str(tmp_path / "map.json"), None, K)


def test_ties_nan_and_the_number_of_logits():
    logits = np.array([[1, 1, 0], [0, 2, 2], [np.nan, 5, 0]])
    assert hits(logits, [(0,), (1,), (1,)], None, 1) == 2
    assert hits(logits, [(1,), (2,), (1,)], None, 1) == 0
    assert hits(logits, [(1,), (2,), (1,)], None, 2) == 2


def test_logits_that_are_not_finite_are_named():
    logits = np.zeros((3, K))
    logits[1, 0] = np.nan
    with pytest.raises(NotFinite, match=r"1 of 3 examples of fake@test.*image 1"):
        run(NumberedSource([0, 0, 0], ["any"]), Targets([(1,)] * 3), logits)


def test_nothing_scored_is_an_error():
    with pytest.raises(ValueError, match="no example of fake@test is scored"):
        run(NumberedSource([0], ["any"]), Targets([()]), np.zeros((1, K)))
