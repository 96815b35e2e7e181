"""Compiles a training run for the slice it is to run on, without the slice, and says whether it fits and how fast.

    python -m vit_jax.plan --config=configs/pretrain_i21k.py:L/16 --topology=v5e:16x16
    python -m vit_jax.plan --config=configs/pretrain_i21k.py:H/14 --topology=v5e:16x16,v5p:4x4x4 --json
    python -m vit_jax.plan --config=configs/pretrain_i21k.py:L/16 --topology=v5e:4x4 --search

Topologies: v2 v3 v4 v5e v5p v6e tpu7x with the chips along each axis, `2*v5e:16x16` for two slices, `cpu:8`. The
very step that `train` runs is compiled by the real TPU compiler (libtpu: pip install 'vit_jax[plan]'). Exit code
0: all fit; 1: one doesn't, the reason is printed.
"""

import contextlib
import dataclasses
import json
import logging
import math
import sys
from collections.abc import Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from vit_jax import cli, distributed, flops, model_config, sharding, start
from vit_jax import job as job_lib
from vit_jax.data import preprocess
from vit_jax.data.dataset import DataFacts, open_dataset
from vit_jax.errors import RunFailed, UsageError
from vit_jax.planning import compiling, estimate, program, report, search
from vit_jax.planning import topology as topologies
from vit_jax.planning.topology import Topology

_log = logging.getLogger("vit_jax.plan")  # by name: run as a command, __name__ is __main__

Plan = dict[str, Any]

# Share of cycles in loops of unknown length that is worth a warning; mixup's sampler of one number is far below.
_UNCOUNTED = 0.001


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns its exit code.

    Raises:
      UsageError: refused before any work; on no topology can the config run.
      RunFailed: it doesn't fit somewhere; all is printed.
    """
    parsed = cli.parse(_parser(), argv)
    options, config = parsed.flags, parsed.config
    places = topologies.parse(options.topology)
    if options.search and len(places) > 1:
        raise UsageError("--search with several topologies", "search on one at a time")
    if options.price_per_chip_hour is not None and not 0 <= options.price_per_chip_hour < math.inf:
        raise UsageError(f"--price-per-chip-hour={options.price_per_chip_hour}", "give a price, 0 or more")
    _use_cpu(places)
    facts = data_facts(config)
    inferred = {} if config.model.name else start.inferred_fields(start.read_init(config))
    model_config.resolve(config, facts, inferred)
    config.allow_scan_without_remat = True  # train refuses it; here it is compiled, to see
    price = options.price_per_chip_hour
    if options.search:
        plans = _search(config, facts, places[0], price, as_json=options.json)
    else:
        plans = _plan_all(config, facts, places, price)
        print(json.dumps(plans) if options.json else _text(plans, places), flush=True)
    unfit = [f"{plan['topology']}: {plan['reason']}" for plan in plans if not plan["fits"]]
    if unfit and not (options.search and len(unfit) < len(plans)):
        raise RunFailed(f"{'; '.join(unfit)} ({cli.MORE_MEMORY}, or take a larger slice)")
    return distributed.EXIT_OK


def _parser() -> cli.Parser:
    parser = cli.Parser("python -m vit_jax.plan", __doc__)
    parser.add_argument(
        "--topology", required=True, help="v5e:16x16[,v5p:4x4x4 ...], 2*v5e:16x16, v3:2x2, cpu:8"
    )
    parser.add_argument("--json", action="store_true", help="stdout is a JSON list, a plan for each topology")
    parser.add_argument(
        "--search", action="store_true", help="try remat, scan, mesh, accumulation and batch, best first"
    )
    parser.add_argument("--price-per-chip-hour", type=float, metavar="PRICE", help="gives the cost")
    return parser


def _use_cpu(places: Sequence[Topology]) -> None:
    """This process computes nothing but constants; a `cpu:N` topology needs N devices of its own."""
    count = max((place.chips for place in places if place.generation == "cpu"), default=1)
    # Refused once jax has devices; then those there are must do, and topologies.devices says so if they don't.
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", count)


def data_facts(config: ConfigDict) -> DataFacts:
    """What the step must know of the data: as the config says, or, where it doesn't, from the data itself.

    Raises:
      UsageError: the config leaves something open, and the data can't be opened here.
    """
    train = preprocess.parse(config.data.preprocess_train)
    examples, classes = config.data.train_examples, config.num_classes
    if classes is None and config.task == "masked_patch":
        classes = 1  # whatever they are: no label is looked at
    if None not in (train.output_size, examples, classes):
        mean, std = (tuple(map(float, values)) for values in train.normalize)
        return DataFacts(examples, classes, (*train.output_size, train.channels), (), mean, std)
    try:
        return open_dataset(config.data, seed=config.seed, num_classes=classes).facts()
    except UsageError as error:
        known = {"--config.data.train_examples": examples, "--config.num_classes": classes}
        missing = [key for key, value in known.items() if value is None]
        missing += [] if train.output_size else ["a size in --config.data.preprocess_train"]
        raise UsageError(f"{error}; without the data", f"a plan needs {', '.join(missing)}") from error


def _plan_all(
    config: ConfigDict, facts: DataFacts, places: Sequence[Topology], price: float | None
) -> list[Plan]:
    """A plan for each topology; one that the config can't run on has the reason in place of figures."""
    plans, refused = [], []
    for place in places:
        try:
            plans.append(make_plan(config, facts, place, price))
        except UsageError as error:
            refused.append(error)
            plans.append(_blank(config, place) | {"reason": str(error)})
    if len(refused) == len(places):
        raise refused[0]
    return plans


def make_plan(config: ConfigDict, facts: DataFacts, place: Topology, price: float | None) -> Plan:
    """Compiles the config's step for a topology: the object that `--json` prints.

    Raises:
      UsageError: the config can't run there at all.
      RunFailed: the compiler fails for another reason than memory.
    """
    devices = topologies.devices(place)
    job = job_lib.build(config, facts, devices)
    _log.info("compiling for %s ...", place.name)
    compiled = compiling.compile_step(job, _compiler_options(place), place.facts and place.facts.hbm_bytes)
    params, opt_state = job.abstract_state.params, job.abstract_state.opt_state
    shardings = job.state_shardings
    plan = _blank(config, place) | {
        "fits": not compiled.reason,
        "reason": compiled.reason or None,
        "argument_bytes": compiled.argument_bytes,
        "temp_bytes": compiled.temp_bytes,
        "peak_bytes": compiled.peak_bytes,
        "params": sum(x.size for x in jax.tree.leaves(params)),
        "param_bytes_per_chip": sharding.bytes_per_device(params, shardings.params),
        "opt_bytes_per_chip": sharding.bytes_per_device(opt_state, shardings.opt_state),
        "unsharded_fraction": sharding.unsharded_fraction(
            params, job.mesh, rules=sharding.TENSOR_RULES, fsdp_min_size=config.fsdp_min_size
        ),
        "model_flops_per_step": job.flops_per_image * config.global_batch,
        "mesh": dict(job.mesh.shape),
        "steps": job.total_steps,
    }
    if compiled.text and place.facts is not None:
        plan |= _timing(job, place, compiled.text, price)
    return plan


def _timing(job: job_lib.Job, place: Topology, text: str, price: float | None) -> Plan:
    """The figures of a plan that come from the compiled program."""
    costs = program.read(text)
    count, cycles = job.mesh.size, costs.matmul_cycles + costs.other_cycles
    if costs.uncounted_cycles > _UNCOUNTED * cycles:
        _log.warning("%.1f %% of the cycles are in loops of unknown length, counted once",
                     100 * costs.uncounted_cycles / cycles)  # fmt: skip
    found = estimate.estimate(costs, place, count)
    total = job.flops_per_image * job.config.global_batch
    peak = flops.peak_flops(job.mesh.devices.flat[0].device_kind)
    hours = estimate.hours(job.total_steps, found.step)
    return {
        "est_step_seconds": found.est,
        "roof_step_seconds": found.roof,
        "est_mfu": estimate.mfu(total, found.est, count, peak),
        "roof_mfu": estimate.mfu(total, found.roof, count, peak),
        "collectives": [dataclasses.asdict(traffic) for traffic in found.traffic],
        "windowed_matmuls": costs.windowed,
        "images_per_second": job.config.global_batch / found.step,
        "hours": hours,
        "chip_hours": hours * place.chips,
        "cost": None if price is None else hours * place.chips * price,
    }


def _blank(config: ConfigDict, place: Topology) -> Plan:
    """Every key of a plan, with what is known before compiling."""
    return {
        "topology": place.name,
        "chips": place.chips,
        "fits": False,
        "hbm_limit_bytes": place.facts.hbm_bytes if place.facts else None,
        **dict.fromkeys((
            "argument_bytes", "temp_bytes", "peak_bytes", "params", "param_bytes_per_chip", "opt_bytes_per_chip",
            "unsharded_fraction", "model_flops_per_step", "est_step_seconds", "roof_step_seconds", "est_mfu",
            "roof_mfu", "collectives", "windowed_matmuls", "images_per_second", "steps", "hours", "chip_hours",
            "cost",             "mesh", "reason",
        )),
        "model": config.model.name,
        "global_batch": config.global_batch,
        "accum_steps": config.accum_steps,
        "scan": config.model.scan,
        "remat": config.model.remat,
        "attention": config.model.attention,
        "dtype": config.model.dtype,
        "softmax_dtype": config.model.softmax_dtype,
    }  # fmt: skip


def _compiler_options(place: Topology) -> dict[str, str]:
    """The options that the launchers set for such a slice."""
    if place.facts is None:
        return {}
    cli.find_launch()
    from vit_jax.launch import xla_flags

    return xla_flags.compiler_options(place.facts.flags, place.slices)


def _search(
    config: ConfigDict, facts: DataFacts, place: Topology, price: float | None, *, as_json: bool
) -> list[Plan]:
    """Plans for other settings, best first: layouts with the config's batch, then other batches with the best."""
    count = len(topologies.devices(place))
    tried: list[tuple[str, Plan]] = []

    def attempt(candidate: dict[str, Any]) -> None:
        words = search.flags(candidate)
        try:
            plan = make_plan(search.applied(config, candidate), facts, place, price)
        except UsageError as error:
            _log.info("  %s: %s", words, error)
            return
        tried.append((words, plan | {"settings": candidate}))
        speed = plan["images_per_second"]
        _log.info("  %s: %s", words, plan["reason"] or (f"{speed:,.0f} images/s" if speed else "fits"))

    for candidate in search.layouts(config, count):
        attempt(candidate)
    if not tried:
        raise UsageError(f"nothing of what was tried can run on {place.name}", "choose another topology")
    best = max(tried, key=lambda pair: search.speed(pair[1]))[1]["settings"]
    for candidate in search.batches(config, best, count):
        attempt(candidate)
    tried.sort(key=lambda pair: search.speed(pair[1]), reverse=True)
    plans = [plan for _, plan in tried]
    print(json.dumps(plans) if as_json else report.ranking(tried), flush=True)
    return plans


def _text(plans: Sequence[Plan], places: Sequence[Topology]) -> str:
    lines = dict.fromkeys(line for place in places for line in estimate.assumptions(place))
    return "\n".join([report.table(plans), "", "Assumed:", *(f"  {line}" for line in lines)])


if __name__ == "__main__":
    cli.run(main, sys.argv[1:])
