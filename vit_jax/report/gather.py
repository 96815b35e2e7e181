"""Computes what a report says. All processes call it together: they take part in every computation."""

import platform
import shlex
from datetime import UTC, datetime
from typing import Any

import jax
import numpy as np

from vit_jax import config as config_lib
from vit_jax import figures, inspection, runs, workdir
from vit_jax.data.decode import BadImage
from vit_jax.data.preprocess import Preprocess, parse
from vit_jax.data.source import Source
from vit_jax.errors import UsageError
from vit_jax.report import mistakes
from vit_jax.report.anchors import anchors
from vit_jax.report.content import Calibration, Content, Inside, Missing, Picture
from vit_jax.report.evaluated import Evaluated
from vit_jax.report.history import read_history

_LOOKS = 4  # images that are looked into


def gather(found: Evaluated) -> Content:
    """Everything that a page about it says."""
    is_run = runs.is_run(found.checkpoint)
    history = (
        read_history(runs.open_run(found.checkpoint)[0].folder.parent)
        if is_run
        else Missing("These are bare weights: nothing is known of their training.")
    )
    split = "test" if "test" in found.data.evals else next(iter(found.data.evals), None)
    commands = {"This page": shlex.join(("python", "-m", "vit_jax.evaluate", *found.command))}
    if is_run and history.starts:
        commands = {"Training": shlex.join(map(str, history.starts[-1].get("command", ()))), **commands}
    return Content(
        checkpoint=found.checkpoint,
        step=found.step,
        created=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        data={
            name: f"{source.spec}@{source.split}, {len(source)} examples"
            for name, source in {**found.data.evals, **found.others}.items()
        },
        results=found.results,
        failed=found.failed,
        anchors=anchors(found.config) if is_run and found.own_data else [],
        history=history,
        mistakes=_mistakes(found, split),
        calibration=_calibration(found, split),
        inside=_inside(found, split),
        config=_leaves(found.config),
        defaults=_leaves(config_lib.base_config()),
        machine=_machine(found),
        commands=commands,
    )


def _mistakes(found: Evaluated, split: str | None) -> mistakes.Mistakes | Missing:
    if split is None:
        return Missing(
            "Nothing was classified: the checkpoint gives features, or no data.test was asked for."
        )
    if f"{split}/class_count" not in found.details:
        return Missing(
            "Examples have several labels, or the evaluation failed: there are no pairs of classes."
        )
    if f"{split}/confusion" not in found.details:
        return Missing(f"With {found.job.facts.num_classes} classes the pairs aren't counted.")
    confusion = found.details[f"{split}/confusion"]
    batches = found.data.eval_batches(
        split, global_batch=found.job.eval_batch, sharding=found.job.batch_sharding
    )
    examples = mistakes.find_examples(
        mistakes.worst_pairs(confusion), batches, found.job.features_step("logits"), found.params,
        mistakes.EXAMPLES,
    )  # fmt: skip
    names = (*found.data.classes, *map(str, range(len(found.data.classes), len(confusion))))
    return mistakes.describe(
        split, found.data.evals[split], found.data.preprocess_eval, names, confusion, examples
    )


def _calibration(found: Evaluated, split: str | None) -> Calibration | Missing:
    if split is None or f"{split}/calibration" not in found.details:
        return Missing("There is no classification with one label per example to calibrate.")
    if not np.isfinite(found.results[f"eval/{split}/ece"]):
        return Missing("The model's probabilities aren't finite.")
    return Calibration(split, found.details[f"{split}/calibration"], found.results[f"eval/{split}/ece"])


def _inside(found: Evaluated, split: str | None) -> Inside | Missing:
    source = found.data.evals[split] if split is not None else next(iter(found.others.values()), None)
    try:
        inspector = inspection.Inspector(found.job.model, found.params, found.job.mesh, found.job.facts)
    except UsageError as error:
        return Missing(f"{error.what[0].upper()}{error.what[1:]}.")
    learned = inspector.learned()
    distances, rollouts = [], []
    program = parse(found.job.config.data.preprocess_eval)
    for name, image in _images(source, program, found.job.facts.image_shape):
        look = inspector.look(image)
        distances.append(look.distance)
        drawn = figures.draw_rollout(image, look.rollout)
        rollouts.append(Picture(figures.png(drawn), "png", f"Attention rollout over {name}", name))
    distance = np.mean(distances, axis=0) if distances else None
    return Inside(learned, distance, tuple(rollouts), inspector.reads)


def _images(
    source: Source | None, program: Preprocess, shape: tuple[int, ...]
) -> list[tuple[str, np.ndarray]]:
    """Name and image as the model takes it of a few examples, spread over the split; unreadable ones left out."""
    found = []
    places = np.linspace(0, len(source) - 1, min(_LOOKS, len(source))) if source is not None else ()
    for place in np.unique(np.round(places).astype(int)).tolist() if source is not None else ():
        try:
            example = source[place]
            image = program.host(example.image, None, example.name)
        except BadImage:
            continue
        if image.shape == shape:
            found.append((example.name, image))
    return found


def _machine(found: Evaluated) -> dict[str, str]:
    devices = jax.devices()
    mesh = ", ".join(f"{name} {size}" for name, size in found.job.mesh.shape.items())
    return {
        "devices": f"{len(devices)} × {devices[0].device_kind}",
        "processes": str(jax.process_count()),
        "mesh": mesh,
        "batch": str(found.job.eval_batch),
        "python": platform.python_version(),
        "jax": jax.__version__,
    }


def _leaves(config: Any) -> dict[str, Any]:
    """Dotted key -> value of a config."""
    found: dict[str, Any] = {}

    def walk(tree: dict[str, Any], prefix: str) -> None:
        for key, value in tree.items():
            if isinstance(value, dict):
                walk(value, f"{prefix}{key}.")
            else:
                found[f"{prefix}{key}"] = value

    walk(workdir.plain(config_lib.to_dict(config)), "")
    return found
