"""The report of a study: Markdown for people, JSON for programs."""

from collections.abc import Mapping, Sequence
from typing import Any

from vit_jax.studies.plan import Experiment
from vit_jax.studies.results import Found


def markdown(experiments: Sequence[Experiment], found: Mapping[str, Sequence[Found]], command: str) -> str:
    """A section for each experiment: what the paper found, then what these runs did.

    Args:
      command: that trained them, for the record.
    """
    parts = ["# Study", "", f"`{command}`", ""]
    for experiment in experiments:
        by = experiment.chosen_by
        chosen = f", at the evaluation with the best `{by}`" if by else ""
        parts += [
            f"## {experiment.title}", "", f"Paper: {experiment.paper}", "",
            f"`{experiment.metric}` in percent{chosen}; mean ± standard deviation over seeds.", "",
            "| run | mean ± sd | n | each |", "|---|---|---|---|",
        ]  # fmt: skip
        parts += [_row(one) for one in found[experiment.name]]
        parts.append("")
        if any(one.values for one in found[experiment.name]):
            parts += [f"![{experiment.title}](figures/{experiment.name}.png)", ""]
    return "\n".join(parts)


def plain(experiments: Sequence[Experiment], found: Mapping[str, Sequence[Found]]) -> dict[str, Any]:
    """{experiment: {metric, runs: {run: {mean, sd, values: {seed: share}}}}}; null where there is no number."""
    return {
        experiment.name: {
            "metric": experiment.metric,
            "runs": {
                one.run.name: {
                    "mean": one.mean,
                    "sd": one.sd,
                    "values": {str(seed): value for seed, value in one.values.items()},
                }
                for one in found[experiment.name]
            },
        }
        for experiment in experiments
    }


def _row(one: Found) -> str:
    if one.mean is None:
        return f"| {one.run.name} | not run | 0 | |"
    spread = "" if one.sd is None else f" ± {100 * one.sd:.1f}"
    each = ", ".join(f"{100 * value:.1f}" for value in one.values.values())
    return f"| {one.run.name} | {100 * one.mean:.1f}{spread} | {len(one.values)} | {each} |"
