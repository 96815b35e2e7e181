"""Folders of runs that look finished, without training."""

import json

from vit_jax.studies.plan import Experiment, Run

CURVE = Experiment(
    name="curve",
    title="A curve",
    paper="It rises.",
    runs=tuple(
        Run(f"{model}-{x}", f"quickstart_{model}", x=x, series=model)
        for model in ("s", "l")
        for x in (10, 90)
    ),
    seeds=2,
    steps=4,
    chosen_by="eval/val/loss",
    x_label="share, %",
)
ROWS = Experiment(
    name="rows",
    title="Rows",
    paper="They differ.",
    runs=(Run("first", "quickstart", shown=False), Run("a", "quickstart"), Run("b", "quickstart")),
    seeds=3,
    steps=4,
)


def write_run(path, lines, *, how="done", seed=0, steps=4):
    """A run's folder with these lines of metrics; how None: it hasn't ended."""
    path.mkdir(parents=True)
    config = {"seed": seed, "total_steps": steps, "total_epochs": None, "total_examples": None}
    (path / "config.json").write_text(json.dumps(config))
    start = {} if how is None else {"end": {"how": how}}
    (path / "run.json").write_text(json.dumps({"starts": [{"end": {"how": "preempted"}}, start]}))
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def line(step, accuracy, loss=1.0):
    return {"step": step, "eval/test/accuracy": accuracy, "eval/val/loss": loss}
