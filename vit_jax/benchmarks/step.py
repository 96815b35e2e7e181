"""Times the forward pass and the training step, beside a plain Linen ViT and, if installed, timm.

    python -m vit_jax.bench step --models=Ti/16,S/16 --batch=8
    python -m vit_jax.bench step --models=L/16 --vs=model.scan=true,model.remat=full

What is timed is what `train` runs: the compiled steps of `vit_jax.job`, on a batch that lies on the devices. All
candidates of a model take turns; ratios are medians over the turns, ± half the distance of their quartiles, and
below 1 means better than `plain`. The figure is CPU time per image of all threads on a CPU, wall-clock elsewhere.
Any config goes: --config=FILE and --config.KEY=VALUE change our step (base.py's values by default); --vs times
another one with more changes beside it.
"""

import argparse
import gc
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from vit_jax import cli, flops, sharding
from vit_jax import job as job_lib
from vit_jax.benchmarks import measure, timm_peer
from vit_jax.benchmarks.plain_vit import PlainViT, plain_steps
from vit_jax.data.dataset import DataFacts
from vit_jax.errors import UsageError
from vit_jax.models.variants import model_family, variant_fields

NUM_CLASSES = 1000
# A turn lasts at least so long, so that clocks and call overheads don't matter.
_TURN_SECONDS = 0.5
_COLUMNS = {
    "candidate": "candidate", "phase": "phase", "cpu_ms": "CPU ms/img", "wall_ms": "wall ms/img",
    "img_per_sec": "img/s", "mfu": "MFU %", "noise": "±", "ratio": "vs plain", "ratio_noise": "±",
}  # fmt: skip

# phase -> a call that runs it once and doesn't wait, and one that waits for all calls so far.
Phase = tuple[Callable[[], None], Callable[[], None]]


def parser() -> cli.Parser:
    """The command's flags."""
    p = cli.Parser("python -m vit_jax.bench step", __doc__)
    p.add_argument(
        "--models", help="names, separated by commas (default: Ti/16,S/16,B/16; with --config: its model)"
    )
    p.add_argument(
        "--batch", type=int, help="images a step, over all devices (default: 8; with --config: its batch)"
    )
    p.add_argument("--image-size", type=int, default=224, help="side in pixels (default: 224)")
    p.add_argument(
        "--dtype", choices=("float32", "bfloat16"), help="of the computation (default: the config's)"
    )
    p.add_argument("--vs", action="append", default=[], metavar="KEY=VALUE,...",
                   help="also time our step with these config keys changed; may be repeated")  # fmt: skip
    p.add_argument("--devices", type=int, help="use the first so many devices (default: all)")
    p.add_argument("--no-peers", action="store_true", help="time our own steps only")
    p.add_argument("--repeats", type=int, default=5, help="turns of every candidate (default: 5)")
    p.add_argument("--json", action="store_true", help="print only a JSON list of rows")
    return p


def main(argv: Sequence[str]) -> int:
    """Runs the benchmark and prints its table; returns the exit code.

    Raises:
      UsageError: refused before any work.
    """
    with_config = any(word.split("=", 1)[0] == "--config" for word in argv)
    words = list(argv) if with_config else ["--config=base", *argv]
    flags = cli.parse(parser(), words).flags
    _check(flags)
    overrides = [word for word in words if word.startswith("--config")]
    if not with_config:
        overrides = ["--config.global_batch=8", *overrides]
    for name, value in (("global_batch", flags.batch), ("model.dtype", flags.dtype)):
        if value is not None:
            overrides.append(f"--config.{name}={value}")
    base = _config(overrides)
    models = _models(flags, base, with_config)
    plans = []
    for model in models:  # everything is refused before the first model is compiled
        named = [*overrides, f"--config.model.name={model}"]
        configs = {"ours": _config(named)}
        for text in flags.vs:
            configs[text] = _config([*named, *(f"--config.{pair}" for pair in text.split(","))])
        plans.append((model, {name: _job(config, flags) for name, config in configs.items()}))
    with cli.work():
        rows = []
        for model, jobs in plans:
            rows += _bench(model, jobs, flags)
            gc.collect()
        if flags.json:
            print(json.dumps(rows, indent=1))
        else:
            _print(rows, base, flags)
    return 0


def _check(flags: argparse.Namespace) -> None:
    for name in ("batch", "repeats", "image_size", "devices"):
        value = getattr(flags, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} is {value}", "give at least 1")


def _config(words: Sequence[str]) -> ConfigDict:
    return cli.parse(cli.Parser("python -m vit_jax.bench step", __doc__), words).config


def _models(flags: argparse.Namespace, base: ConfigDict, with_config: bool) -> list[str]:
    if flags.models is not None:
        models = [name.strip() for name in flags.models.split(",")]
    else:
        models = [base.model.name] if with_config else ["Ti/16", "S/16", "B/16"]
    for name in models:
        if model_family(name) != "vit" or "backbone" in variant_fields(name):
            raise UsageError(f"no plain ViT to compare {name} with", "name models such as B/16")
    return models


def _job(config: ConfigDict, flags: argparse.Namespace) -> job_lib.Job:
    facts = DataFacts(
        num_examples=1_281_167,
        num_classes=NUM_CLASSES,
        image_shape=(flags.image_size, flags.image_size, 3),
        label_shape=(),
        mean=(127.5,) * 3,
        std=(127.5,) * 3,
    )
    if all(config[f"total_{unit}"] is None for unit in ("steps", "epochs", "examples")):
        config.total_steps = 10_000
    config.model.image_size = flags.image_size
    devices = jax.devices()[: flags.devices]
    return job_lib.build(config, facts, devices)


def _bench(model: str, jobs: dict[str, job_lib.Job], flags: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of one model: every candidate's forward pass and training step."""
    ours = jobs["ours"]
    batch = ours.config.global_batch
    images, labels = _batch(batch, flags.image_size)
    candidates: dict[str, dict[str, Phase]] = {}
    if not flags.no_peers:
        candidates["plain"] = _plain(model, ours, images, labels)
    for name, job in jobs.items():
        candidates[name] = _ours(job, images, labels)
    if not flags.no_peers and not _why_no_timm():
        calls = timm_peer.timm_calls(
            model, images, labels.astype(np.int64), dtype=ours.config.model.dtype,
            device="cpu" if jax.default_backend() == "cpu" else "cuda",
        )  # fmt: skip
        if calls is not None:
            candidates["timm"] = dict(
                zip(("train", "forward"), ((call, _nothing) for call in calls), strict=True)
            )
    rows = []
    for phase in ("forward", "train"):
        calls = {name: phases[phase] for name, phases in candidates.items()}
        rows += _turns(model, phase, calls, ours, flags)
    return rows


def _turns(
    model: str, phase: str, calls: dict[str, Phase], ours: job_lib.Job, flags: argparse.Namespace
) -> list[dict[str, Any]]:
    images = ours.config.global_batch
    turns, steps = {}, {}
    for name, (call, wait) in calls.items():
        _run(call, wait, 1)  # compiles
        once = min(measure.cost(lambda c=call, w=wait: _run(c, w, 1)).wall for _ in range(2))
        steps[name] = max(1, math.ceil(_TURN_SECONDS / once))
        turns[name] = lambda c=call, w=wait, n=steps[name]: _run(c, w, n)
    costs = measure.rounds(turns, flags.repeats)
    on_cpu = jax.default_backend() == "cpu"
    per_image = {n: [(c.cpu if on_cpu else c.wall) / steps[n] / images for c in costs[n]] for n in costs}
    peak = flops.peak_flops(jax.devices()[0].device_kind)
    work = ours.flops_per_image / (1 if phase == "train" else flops.TRAIN_PER_FORWARD)
    rows = []
    for name, turn in costs.items():
        wall = measure.median([c.wall / steps[name] / images for c in turn])
        row = {
            "model": model,
            "batch": images,
            "candidate": name,
            "phase": phase,
            "cpu_ms": 1e3 * measure.median([c.cpu / steps[name] / images for c in turn]) if on_cpu else None,
            "wall_ms": 1e3 * wall,
            "img_per_sec": 1 / wall,
            "mfu": 100 * work / wall / peak / ours.mesh.size if peak else None,
            "noise": measure.spread(per_image[name]),
            "ratio": None,
            "ratio_noise": None,
        }
        if "plain" in costs and name != "plain":
            ratios = [a / b for a, b in zip(per_image[name], per_image["plain"], strict=True)]
            row |= {"ratio": measure.median(ratios), "ratio_noise": measure.spread(ratios)}
        rows.append(row)
    return rows


def _run(call: Callable[[], None], wait: Callable[[], None], times: int) -> None:
    for _ in range(times):
        call()
    wait()


def _nothing() -> None:
    pass


def _batch(batch: int, image_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Random uint8 [B, H, W, 3] and int32 [B]."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (batch, image_size, image_size, 3), np.uint8)
    return images, rng.integers(0, NUM_CLASSES, batch, np.int32)


class _Calls:
    """Keeps the state between the steps of one candidate, and what its last call gave."""

    def __init__(self, state: Any, train: Callable[..., Any], forward: Callable[..., Any]) -> None:
        self.state, self.last = state, None
        self._train, self._forward = train, forward
        self._one_by_one = jax.default_backend() == "cpu"

    def train(self) -> None:
        before, (self.state, self.last) = self.last, self._train(self.state)
        self._hold_back(before)

    def forward(self) -> None:
        before, self.last = self.last, self._forward(self.state)
        self._hold_back(before)

    def _hold_back(self, before: Any) -> None:
        # As in the training loop, one call is queued behind the one that runs. CPU devices run out of threads
        # when several calls with collectives wait for each other.
        jax.block_until_ready(self.last if self._one_by_one else before)

    def wait(self) -> None:
        jax.block_until_ready((self.state, self.last))

    def phases(self) -> dict[str, Phase]:
        return {"train": (self.train, self.wait), "forward": (self.forward, self.wait)}


def _ours(job: job_lib.Job, images: np.ndarray, labels: np.ndarray) -> dict[str, Phase]:
    batch = {"image": images, "label": labels, "mask": np.ones(len(labels), np.float32)}
    batch = jax.device_put(batch, job.batch_sharding)
    train, forward = job.lower_train_step().compile(), job.lower_eval_step().compile()
    calls = _Calls(
        job.create_state(), lambda state: train(state, batch), lambda state: forward(state.params, batch)
    )
    return calls.phases()


def _plain(model: str, job: job_lib.Job, images: np.ndarray, labels: np.ndarray) -> dict[str, Phase]:
    """The plain ViT of the same shape, data-parallel over the same devices."""
    shape = {**variant_fields(model), **_shape_overrides(job.config)}
    network = PlainViT(**shape, num_classes=NUM_CLASSES, dtype=jnp.dtype(job.config.model.dtype))
    state, train, forward = plain_steps(
        network, image_size=images.shape[1], learning_rate=job.config.optim.lr
    )
    state = jax.device_put(state, sharding.replicated(job.mesh))
    batch = jax.device_put((images, labels), job.batch_sharding)
    return _Calls(state, lambda s: train(s, *batch), lambda s: forward(s, *batch)).phases()


def _shape_overrides(config: ConfigDict) -> dict[str, int]:
    names = ("patch_size", "width", "depth", "mlp_dim", "num_heads")
    return {name: config.model[name] for name in names if config.model[name] is not None}


def _why_no_timm() -> str | None:
    reason = timm_peer.missing()
    if reason is None and jax.default_backend() not in ("cpu", "gpu"):
        reason = f"doesn't run on {jax.default_backend()}"
    return reason


def _print(rows: list[dict[str, Any]], base: ConfigDict, flags: argparse.Namespace) -> None:
    device = jax.devices()[0]
    devices = f"{flags.devices or jax.device_count()} x {device.device_kind}, jax {jax.__version__}"
    print(
        f"{devices}; batch {base.global_batch}, {flags.image_size} px, {base.model.dtype}, {flags.repeats} turns"
    )
    for model in dict.fromkeys(row["model"] for row in rows):
        shown = [
            {**row, **{key: _percent(row[key]) for key in ("noise", "ratio_noise")}}
            for row in rows
            if row["model"] == model
        ]
        print(f"\n{model}\n{measure.table(shown, _COLUMNS)}")
    if not flags.no_peers and _why_no_timm():
        print(f"\ntimm: absent ({_why_no_timm()})")


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.1f} %"
