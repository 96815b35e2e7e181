"""The Predictor: evaluation's logits to the bit, whatever the batch; odd images; what is refused."""

import json
import shutil
from pathlib import Path

import cv2
import jax
import numpy as np
import pytest

import vit_jax
from tests import saved_run
from tests.data import odd_files
from tests.golden_layouts import load_npz
from vit_jax import losses, step
from vit_jax.data.decode import decode_image
from vit_jax.errors import UsageError
from vit_jax.evaluators.classification import Classification

NAMES = tuple("0123456789")
RESIZE = "decode|resize(8)|value_range(-1, 1)"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Folder, job, dataset and state of a run on all 8 devices."""
    path = tmp_path_factory.mktemp("run") / "été 100%"
    return path, *saved_run.save(path, devices=8, global_batch=64)


@pytest.fixture(scope="module")
def run(saved):
    return saved[0]


@pytest.fixture(scope="module")
def predictor(run):
    return vit_jax.Predictor.from_checkpoint(run)


@pytest.fixture(scope="module")
def digits(saved):
    """uint8 [360, 8, 8, 1] and labels."""
    source = saved[2].evals["test"]
    return np.stack([source[i].image for i in range(len(source))]), source.labels()


def test_logits_are_those_of_the_evaluation(saved, digits):
    path, job, dataset, state = saved
    images, labels = digits
    predictor = vit_jax.Predictor.from_checkpoint(path, batch_size=None)
    assert predictor.batch_size == job.eval_batch == 64
    logits = predictor.logits(list(images))
    assert logits.shape == (360, 10) and logits.dtype == np.float32

    # The evaluation step with one output more.
    def with_logits(params, batch):
        sums = step.eval_step(params, batch, model=job.model, task=job.task)
        return sums, step.predict_step(params, batch["image"], model=job.model, scale=job.task)

    compiled = jax.jit(with_logits)
    batches = dataset.eval_batches("test", global_batch=job.eval_batch, sharding=job.batch_sharding)
    rows = []
    for batch in batches():
        found = jax.device_get(compiled(state.params, batch)[1])
        rows.append(found[jax.device_get(batch["mask"]) == 1])
    assert np.concatenate(rows).tobytes() == logits.tobytes()

    result = Classification(batches, job.lower_eval_step().compile()).run(state)
    assert result["correct"] == int((logits.argmax(1) == labels).sum())
    assert 0 < result["correct"] < 360
    loss = losses.softmax_xent(logits, losses.to_targets(jax.numpy.asarray(labels), 10))
    assert result["loss"] == pytest.approx(float(loss.mean()), rel=1e-6)
    assert len({row.tobytes() for row in logits}) == 360


@pytest.mark.parametrize("batch_size", [8, 32])
def test_an_image_alone_is_as_in_a_batch(run, digits, batch_size):
    predictor = vit_jax.Predictor.from_checkpoint(run, batch_size=batch_size)
    images = list(digits[0][:70])
    together = predictor(images)
    for i in (0, 1, 7, 8, 31, 33, 63, 69):
        assert predictor([images[i]]).tobytes() == together[i].tobytes()
    assert predictor(images[:9]).tobytes() == together[:9].tobytes()
    assert predictor(images[::-1])[::-1].tobytes() == together.tobytes()


def test_probabilities_and_top(predictor, digits):
    assert predictor.classes == NAMES and predictor.activation == "softmax" and predictor.batch_size == 32
    probs = predictor(digits[0][:5])
    assert probs.shape == (5, 10) and probs.dtype == np.float32
    np.testing.assert_allclose(probs.sum(1), 1, rtol=1e-6)
    np.testing.assert_allclose(probs, jax.nn.softmax(predictor.logits(digits[0][:5])), rtol=1e-5)
    best = predictor.top(probs, 3)
    for row, found in zip(probs, best, strict=True):
        assert [p.index for p in found] == list(np.argsort(-row)[:3])
        assert [p.probability for p in found] == [float(row[p.index]) for p in found]
        assert [p.name for p in found] == [NAMES[p.index] for p in found]
    assert [len(row) for row in predictor.top(probs, 99)] == [10] * 5
    ties = np.asarray([[np.nan, 0.1, 0.3, 0.3, 0, 0, 0, 0, 0, 0.3]], np.float32)
    assert [p.index for p in predictor.top(ties, 4)[0]] == [2, 3, 9, 1]
    assert predictor.top(ties, 10)[0][-1].index == 0
    assert predictor([]).shape == (0, 10) and predictor.top(predictor([]), 1) == []


def test_extreme_logits_give_probabilities(predictor):
    found = predictor.probabilities(np.asarray([1e4, 0, -1e4] + [0] * 7, np.float32))
    assert found.tolist() == [1.0] + [0.0] * 9
    assert np.isnan(predictor.probabilities(np.full(10, np.inf, np.float32))).all()


def test_a_sigmoid_run_gives_independent_probabilities(tmp_path, digits):
    saved_run.save(tmp_path, loss="sigmoid_xent", num_classes=12)
    predictor = vit_jax.Predictor.from_checkpoint(tmp_path)
    assert predictor.activation == "sigmoid"
    assert predictor.classes == (*NAMES, "10", "11")  # more outputs than names
    images = list(digits[0][:4])
    np.testing.assert_allclose(predictor(images), jax.nn.sigmoid(predictor.logits(images)), rtol=1e-5)
    assert predictor.probabilities(np.asarray([1e4, -1e4, 0], np.float32)).tolist() == [1.0, 0.0, 0.5]


def test_files_and_arrays_of_any_shape_are_mixed(predictor, digits, tmp_path):
    images = digits[0][:4]
    inputs = []
    for i, image in enumerate(images):
        path = tmp_path / f"猫 {i} 100%25.png"
        assert cv2.imencode(".png", image)[1].tofile(path) is None
        inputs.append(str(path) if i % 2 else path)
    expected = predictor.logits(images)
    assert predictor.logits(inputs).tobytes() == expected.tobytes()
    mixed = [inputs[0], images[1], images[2][:, :, 0], np.repeat(images[3], 3, axis=2)]
    assert predictor.logits(mixed).tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    "name",
    ["cmyk.jpg", "exif6.jpg", "gray_L.png", "ramp16.png", "animated.gif", "px_1x1.png", "px_1x3000.png",
     "la.png", "palette.png"],
)  # fmt: skip
def test_odd_images_are_decoded_as_in_training(run, name):
    predictor = vit_jax.Predictor.from_checkpoint(run, preprocess=RESIZE)
    decoded = decode_image(odd_files.read(name))
    assert predictor.logits([odd_files.path(name)]).tobytes() == predictor.logits([decoded]).tobytes()


def test_orientation_is_applied_only_if_the_run_does(run):
    path = odd_files.path("exif6.jpg")
    stored = cv2.imread(path, cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION)
    ignoring = vit_jax.Predictor.from_checkpoint(run, preprocess=RESIZE)
    applying = vit_jax.Predictor.from_checkpoint(
        run, preprocess=RESIZE.replace("decode", "decode(exif=true)")
    )
    turned = np.rot90(stored, -1).copy()
    assert ignoring.logits([path]).tobytes() == ignoring.logits([stored]).tobytes()
    assert applying.logits([path]).tobytes() == ignoring.logits([turned]).tobytes()
    assert applying.logits([path]).tobytes() != ignoring.logits([path]).tobytes()


def test_what_is_no_image_is_named_and_the_rest_goes_on(predictor, digits, tmp_path):
    jpeg = odd_files.read("cmyk.jpg")
    files = {"empty.jpg": b"", "text.png": b"no image", "cut.jpg": jpeg[: len(jpeg) // 2]}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    bad = [tmp_path / name for name in [*files, "missing.png"]]
    wrong = [np.zeros((8, 8, 4), np.uint8), np.zeros((8, 8, 3)), np.zeros((9, 8, 3), np.uint8)]
    good = digits[0][0]
    answers = list(predictor.stream([*bad, tmp_path, *wrong, good]))
    assert [a.name for a in answers[:5]] == [str(p) for p in [*bad, tmp_path]]
    problems = [
        "empty", "not an image", "truncated", "No such file", "Is a directory", "uint8 [8, 8, 4]", "float64",
        "is [9, 8, 3] after",
    ]  # fmt: skip
    for answer, problem in zip(answers, problems, strict=False):
        assert answer.logits is None and problem in answer.problem
    assert answers[-1].name == "image 8" and not answers[-1].problem
    assert answers[-1].logits.tobytes() == predictor.logits([good]).tobytes()
    with pytest.raises(UsageError, match=r"text\.png: not an image"):
        predictor([good, bad[1]])


def test_folders_are_expanded_on_request(tmp_path):
    root = Path(odd_files.unpack("hidden_dirs", tmp_path))
    found = vit_jax.Predictor.expand([root, "a b.jpg"])
    assert len(found) == 7 and found[-1] == "a b.jpg"
    assert found[:-1] == sorted(found[:-1]) and not [f for f in found if "/." in f or "__MACOSX" in f]
    (tmp_path / "none").mkdir()
    with pytest.raises(UsageError, match=r"no images in .*none"):
        vit_jax.Predictor.expand([tmp_path / "none"])


def test_class_names_of_the_user(run, tmp_path):
    names = ["été", "猫", " spaced ", "a,b", "", *"56789"]
    file = tmp_path / "names.txt"
    for text in ("\n".join(names), "\n".join(names) + "\n", "\r\n".join(names) + "\r\n"):
        file.write_bytes(text.encode())
        assert vit_jax.Predictor.from_checkpoint(run, classes=file).classes == tuple(names)
    assert vit_jax.Predictor.from_checkpoint(run, classes=names).classes == tuple(names)
    file.write_text("a\nb\n")
    with pytest.raises(UsageError, match=r"names\.txt names 2 classes, the model has 10"):
        vit_jax.Predictor.from_checkpoint(run, classes=file)
    file.write_bytes(b"\xff\xfe")
    for bad, why in ((file, "not UTF-8"), (tmp_path / "none", "No such file")):
        with pytest.raises(UsageError, match=why):
            vit_jax.Predictor.from_checkpoint(run, classes=bad)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subtree": "ema"}, "has no 'ema'"),
        ({"batch_size": 0}, "batch size is 0"),
        ({"preprocess": "decode|resize(16)"}, r"gives images \[16, 16, 3\], the model takes \[8, 8, 3\]"),
        ({"preprocess": "decode(channels=1)|resize(8)"}, r"gives images \[8, 8, 1\]"),
        ({"preprocess": "decode|resize(8)|flip_lr"}, "is random"),
        ({"preprocess": "decode|rezise(8)"}, "did you mean 'resize'"),
    ],
)
def test_options_that_do_not_suit_the_run(run, options, message):
    with pytest.raises(UsageError, match=message):
        vit_jax.Predictor.from_checkpoint(run, **options)


def test_checkpoints_by_step(run, predictor, digits, tmp_path):
    images = list(digits[0][:2])
    at = vit_jax.Predictor.from_checkpoint(f"{run}@0")
    assert at.logits(images).tobytes() == predictor.logits(images).tobytes()
    with pytest.raises(UsageError, match="no step '7'"):
        vit_jax.Predictor.from_checkpoint(f"{run}@7")
    (tmp_path / "weights.npz").write_bytes(b"")
    for spec, message in (("weights.npz", "no intact .npz file"), ("nowhere", "no such file or folder")):
        with pytest.raises(UsageError, match=message):
            vit_jax.Predictor.from_checkpoint(tmp_path / spec)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (["https://example.org/a.jpg"], r"https://example.org/a\.jpg is a URL.*download it first"),
        (["a.jpg", None], "input 1 is a NoneType"),
        ("a.jpg", "one image, 'a.jpg'"),
        (Path("a.jpg"), "one image, 'a.jpg'"),
        (np.zeros((8, 8, 3), np.uint8), r"one image, array \[8, 8, 3\]"),
    ],
)
def test_inputs_that_are_no_images(predictor, inputs, message):
    with pytest.raises(UsageError, match=message):
        predictor(inputs)


def test_a_mesh_that_does_not_fit_here_is_replaced(tmp_path, digits):
    """A run of another number of devices; a run whose config doesn't tell the image size."""
    saved_run.save(tmp_path, devices=4, mesh__fsdp=2, mesh__tensor=2, fsdp_min_size=0, mesh__replica=1)
    predictor = vit_jax.Predictor.from_checkpoint(tmp_path, batch_size=1)
    assert predictor.batch_size == 8  # one row for each of the devices
    assert predictor(list(digits[0][:3])).shape == (3, 10)


def test_a_run_knows_the_size_of_its_images_though_neither_parameters_nor_preprocessing_tell(
    tmp_path, digits
):
    saved_run.save(tmp_path, model__posemb="sincos2d")
    assert vit_jax.Predictor.from_checkpoint(tmp_path)(list(digits[0][:3])).shape == (3, 10)
    with pytest.raises(UsageError, match=r"gives images \[16, 16, 3\], the model takes \[8, 8, 3\]"):
        vit_jax.Predictor.from_checkpoint(tmp_path, preprocess="decode|resize(16)|value_range(-1, 1)")


def test_a_run_without_its_classes_is_refused(run, tmp_path):
    shutil.copytree(run, tmp_path / "copy")
    (tmp_path / "copy" / "classes.txt").unlink()
    with pytest.raises(UsageError, match=r"classes\.txt does not exist"):
        vit_jax.Predictor.from_checkpoint(tmp_path / "copy")


def test_weights_without_a_run_predict_what_their_program_does(golden, tmp_path):
    """Normalisation, GELU, epsilon and pooling are the layout's or its config's; images are squashed."""
    for path, io in (("vt/pretrained_21cls.npz", "vt/pretrained_21cls.io.npz"), ("hf/vit", "hf/vit/io.npz")):
        reference = load_npz(golden / io)
        predictor = vit_jax.Predictor.from_checkpoint(golden / path)
        logits = predictor.logits(list(reference["image_uint8"]))
        np.testing.assert_allclose(logits, reference["logits"], atol=3e-5, rtol=1e-4)
        assert predictor.classes[:3] == ("0", "1", "2") and predictor.activation == "softmax"
    names = tmp_path / "names.txt"
    names.write_text("".join(f"klasse {i}\n" for i in range(7)), encoding="utf-8")
    predictor = vit_jax.Predictor.from_checkpoint(golden / "hf/vit", classes=names)
    assert predictor.classes[6] == "klasse 6"
    assert predictor([np.zeros((90, 50, 3), np.uint8)]).shape == (1, 7)


def test_the_config_beside_the_weights_says_how_images_are_normalised(golden, tmp_path):
    shutil.copytree(golden / "hf/vit", tmp_path / "hf")
    (tmp_path / "hf").chmod(0o755)
    scale = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
    (tmp_path / "hf" / "preprocessor_config.json").write_text(json.dumps(scale))
    image = np.random.default_rng(0).integers(0, 256, (32, 32, 3)).astype(np.uint8)
    plain, scaled = (vit_jax.Predictor.from_checkpoint(p) for p in (golden / "hf/vit", tmp_path / "hf"))
    model, params = vit_jax.load(golden / "hf/vit")
    expected = (image / np.float32(255) - np.float32(scale["image_mean"])) / np.float32(scale["image_std"])
    logits = model.apply({"params": params}, expected[None].astype(np.float32))[0][0]
    np.testing.assert_allclose(scaled.logits([image])[0], logits, atol=1e-5)
    assert np.abs(plain.logits([image])[0] - logits).max() > 1e-2


def test_weights_without_a_head_are_refused(golden, tmp_path):
    arrays = {k: v for k, v in load_npz(golden / "vt/token.npz").items() if not k.startswith("head/")}
    np.savez(tmp_path / "features.npz", **arrays)
    with pytest.raises(UsageError, match=r"features.npz has no classes"):
        vit_jax.Predictor.from_checkpoint(tmp_path / "features.npz")
