"""One table of ours beside the published rows: for the terminal, as CSV and as LaTeX."""

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from vit_jax.data.vtab_tasks import GROUPS, TASKS
from vit_jax.vtab1k import reference
from vit_jax.vtab1k.results import Score, summarize


@dataclass(frozen=True)
class Content:
    """What all forms of the table show.

    Attributes:
      scores: task -> score of those that are through.
      missing: task -> why it isn't, and what to do; all others of the 19.
      summary: see `results.summarize`.
      checkpoint, protocol, normalization: of all of them.
    """

    scores: dict[str, Score]
    missing: dict[str, str]
    checkpoint: str
    protocol: str
    normalization: str

    @property
    def summary(self) -> dict[str, Any]:
        return summarize({name: score.accuracy for name, score in self.scores.items()})

    @property
    def marks(self) -> dict[str, str]:
        """Task -> in what its data differs from VTAB's, or its runs from the rest."""
        found = {}
        for name, score in self.scores.items():
            notes = list(score.finals[0]["differences"])
            if absent := score.finals[0]["absent_classes"]:
                notes.append(
                    f"{len(absent)} {'class' if len(absent) == 1 else 'classes'} without a training image"
                )
            counts = {result["count"] for result in score.finals}
            if counts != {score.finals[0]["test_examples"]}:
                notes.append(f"{min(counts)} of {score.finals[0]['test_examples']} test images could be read")
            if notes:
                found[name] = "; ".join(notes)
        return found


@dataclass(frozen=True)
class Line:
    """A line of the table: a task, a group or the mean of all.

    Attributes:
      key: task, group or "mean".
      title: shown.
      score: of a task that is through.
      value: 0 to 1; None: not known.
      published: % by row of `reference.ROWS`.
    """

    key: str
    title: str
    score: Score | None
    value: float | None
    published: tuple[float, ...]

    @property
    def is_task(self) -> bool:
        return self.key in TASKS


def lines(content: Content) -> list[Line]:
    """The tasks of each group and their mean, then the mean of all."""
    summary, out = content.summary, []
    published = [summarize({k: v / 100 for k, v in row.scores.items()}) for row in reference.ROWS]

    def line(key: str, title: str) -> Line:
        return Line(
            key, title, content.scores.get(key), summary.get(key), tuple(100 * row[key] for row in published)
        )

    for group in GROUPS:
        out += [line(name, task.title) for name, task in TASKS.items() if task.group == group]
        out.append(line(group, group.capitalize()))
    return [*out, line("mean", "Mean of the 19")]


def terminal(content: Content) -> str:
    """Fixed columns; % of the test split."""
    names = [row.name for row in reference.ROWS]
    widths = [max(len(name), 5) for name in names]
    head = f"{'test accuracy, %':<21}{'ours':>8}{'sd':>6}  " + _columns(names, widths)
    rule, out = "-" * len(head), [head]
    marks = content.marks
    for line in lines(content):
        if not line.is_task:
            out.append(rule)
        spread = line.score.sd if line.score is not None else None
        mark = "*" if line.key in marks else ""
        out.append(
            f"{line.title + mark:<21}{percent(line.value):>8}{percent(spread):>6}  "
            + _columns([f"{value:.1f}" for value in line.published], widths)
        )
        if not line.is_task:
            out.append(rule)
    out = [row for row, after in zip(out, [*out[1:], ""], strict=True) if (row, after) != (rule, rule)]
    out += [*about(content), *(f"missing {names}: {why}" for why, names in reasons(content).items())]
    return "\n".join(line.rstrip() for line in out) + "\n"


def about(content: Content) -> list[str]:
    """Under the table: what was run, on what."""
    summary = content.summary
    out = [
        f"{content.checkpoint}, {content.protocol}; images normalised by {content.normalization}",
        "ours: the median of the final runs on 1000 training images, over the whole test split",
        *(f"* {TASKS[name].title}: {why}" for name, why in content.marks.items()),
    ]
    if missing := len(summary["missing"]):
        out.append(f"{missing} of 19 tasks {'is' if missing == 1 else 'are'} missing: no mean of the 19")
    return out


def reasons(content: Content) -> dict[str, str]:
    """Why tasks are missing -> their names, joined."""
    found: dict[str, list[str]] = {}
    for name, why in content.missing.items():
        found.setdefault(why, []).append(name)
    return {why: ", ".join(names) for why, names in found.items()}


def as_csv(content: Content) -> str:
    """A row for every line; accuracies in %, empty where not known."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    columns = (
        "task",
        "title",
        "accuracy",
        "sd",
        "runs",
        "test_examples",
        "setting",
        "normalization",
        "remarks",
    )
    writer.writerow([*columns, *(row.name for row in reference.ROWS)])
    for line in lines(content):
        score = line.score
        first = score.finals[0] if score else {}
        writer.writerow([
            line.key, line.title, percent(line.value, ""), percent(score.sd if score else None, ""),
            " ".join(percent(run) for run in score.runs) if score else "", first.get("count", ""),
            setting(first), first.get("normalization", ""),
            content.marks.get(line.key, "") or content.missing.get(line.key, ""),
            *(f"{value:.2f}" for value in line.published),
        ])  # fmt: skip
    return out.getvalue()


def latex(content: Content) -> str:
    """A `tabular` (package booktabs), tasks as rows."""
    names = [row.name for row in reference.ROWS]
    out = [
        *(f"% {tex(text)}" for text in about(content)),
        rf"\begin{{tabular}}{{lr{'r' * len(names)}}}",
        r"\toprule",
        " & ".join(["", "ours", *map(tex, names)]) + r" \\",
        r"\midrule",
    ]
    for line in lines(content):
        value = percent(line.value, "--") + (r"$^{*}$" if line.key in content.marks else "")
        cells = [tex(line.title), value, *(f"{value:.1f}" for value in line.published)]
        if line.is_task:
            out.append(" & ".join(cells) + r" \\")
        else:
            out += [r"\midrule", " & ".join(rf"\textbf{{{cell}}}" for cell in cells) + r" \\", r"\midrule"]
    return "\n".join([*out[:-1], r"\bottomrule", r"\end{tabular}"]) + "\n"


def setting(result: dict[str, Any]) -> str:
    """What was chosen for a task: `lr 0.01, 2500 steps` or `l2 0.001`."""
    if "l2" in result:
        return f"l2 {result['l2']:g}"
    if "lr" not in result:
        return ""
    length = next((f"{result[f'total_{unit}']} {unit}" for unit in ("steps", "epochs", "examples")
                   if result.get(f"total_{unit}") is not None), "")  # fmt: skip
    return ", ".join(filter(None, (f"lr {result['lr']:g}", length)))


def percent(value: float | None, missing: str = "-") -> str:
    """0.5 as `50.00`."""
    return missing if value is None else f"{100 * value:.2f}"


def tex(text: str) -> str:
    """Text with LaTeX's special characters escaped."""
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(special.get(c, "\\" + c if c in "&%$#_{}" else c) for c in text)


def _columns(cells: Iterable[str], widths: Iterable[int]) -> str:
    return "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
