"""What each augmentation costs: steps of preprocessing strings beside each other and beside the decoder.

One thread, one image at a time. Steps that bring an image to size get whole pictures, the others what
`inception_crop` made of them.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vit_jax.benchmarks import measure
from vit_jax.data.order import example_index, example_rng
from vit_jax.data.preprocess import Preprocess, parse
from vit_jax.data.randaug import LEGACY, Draw
from vit_jax.data.sources import Source
from vit_jax.errors import UsageError

SIZE = 224
STEPS = (
    f"inception_crop({SIZE})", f"simple_random_crop({SIZE})", "flip_lr", "randaug(2, 10)",
    "randaug(2, 10, mode='fixed')", "three_augment", "color_jitter", "random_erasing(1)",
    "random_erasing(1, mode='noise')",
)  # fmt: skip
_MAGNITUDE = 10
_COLUMNS = {"step": "step", "cpu_ms": "CPU ms/img", "noise": "±", "ratio": "vs decode"}


def programs(texts: Sequence[str]) -> dict[str, Preprocess]:
    """The steps to compare, by their text.

    Raises:
      UsageError: syntax, unknown steps, or a `decode`, which has a row of its own.
    """
    parsed = {text: parse(text) for text in texts or STEPS}
    for text, program in parsed.items():
        if program.decode is not None:
            raise UsageError(f"--augment {text!r} decodes", "leave 'decode' out: it has a row of its own")
    return parsed


def compare(source: Source, steps: dict[str, Preprocess], flags: argparse.Namespace, seed: int) -> dict:
    """Times them; without --augment=STEPS the sixteen operations of RandAugment too.

    Args:
      flags: images, repeats, augment.

    Returns:
      {"images", "size", "rows": [{"step", "cpu_ms", "noise", "ratio"}]}; ratio: to the decoder's cost.
    """
    examples = [source[int(i)] for i in example_index(seed, np.arange(flags.images), len(source))]
    decode, crop = parse("decode"), parse(f"inception_crop({SIZE})")
    pictures = [decode.load(e.image, e.name) for e in examples]
    crops = [crop.host(picture, example_rng(seed, i)) for i, picture in enumerate(pictures)]
    turns: dict[str, Callable[[], None]] = {
        "decode": lambda: _each(examples, lambda e, _rng: decode.load(e.image, e.name), seed)
    }
    for text, program in steps.items():
        images = crops if program.output_size is None else pictures
        turns[text] = lambda images=images, program=program: _each(images, program.host, seed)
    if not flags.augment:
        for name in LEGACY:
            turns[f"  {name}"] = lambda name=name: _each(
                crops, lambda image, _rng, name=name: LEGACY[name](image, _MAGNITUDE, Draw(1, 0.5, 0.5)), seed
            )
    for turn in turns.values():
        turn()
    costs = measure.rounds(turns, flags.repeats)
    rows = []
    for name, turn in costs.items():
        cpu = [c.cpu / flags.images for c in turn]
        ratio = measure.median([c.cpu / d.cpu for c, d in zip(turn, costs["decode"], strict=True)])
        rows.append(
            {"step": name, "cpu_ms": 1e3 * measure.median(cpu), "noise": measure.spread(cpu), "ratio": ratio}
        )
    return {"images": flags.images, "size": SIZE, "rows": rows}


def _each(inputs: Sequence[Any], step: Callable[[Any, np.random.Generator], object], seed: int) -> None:
    rng = example_rng(seed, 0)
    for one in inputs:
        step(one, rng)


def show(result: dict, source: Source, flags: argparse.Namespace) -> None:
    """Prints the table."""
    print(f"{source.spec}@{source.split}; {result['images']} images a turn, {flags.repeats} turns, one thread; "
          f"steps that keep the size at {result['size']}x{result['size']}\n")  # fmt: skip
    rows = [{**r, "noise": f"{100 * r['noise']:.0f} %"} for r in result["rows"]]
    print(measure.table(rows, _COLUMNS))
    if not flags.augment:
        print(f"\nindented: the operations of randaug, legacy, at magnitude {_MAGNITUDE}")
