"""The files of a workdir that show the table: rewritten whole whenever a task is through."""

import json
import logging
from datetime import UTC, datetime

from etils import epath

from vit_jax.data.vtab_tasks import TASKS
from vit_jax.vtab1k import page, table, trials
from vit_jax.vtab1k.check import Check
from vit_jax.vtab1k.plan import Plan
from vit_jax.vtab1k.results import SUMMARY, Store, Turn, write_whole

_log = logging.getLogger(__name__)


def content(plan: Plan, protocol: str, checks: dict[str, Check], failed: dict[str, str]) -> table.Content:
    """What is on disk by now.

    Args:
      checks: of the data of all tasks, by name.
      failed: task -> why, of those that failed in this command.
    """
    store = Store(plan.workdir)
    final = [trial.name for trial in trials.finals(plan.config, None)]
    scores = {name: score for name in TASKS if (score := store.score(name, final)) is not None}
    missing = {}
    for name in TASKS:
        if name in scores:
            continue
        done = store.done(name, final)
        if checks[name].splits is None:
            missing[name] = f"{checks[name].problem}; {checks[name].remedy}"
        elif name in failed:
            missing[name] = f"{failed[name]}; the same command runs it again"
        elif done:
            missing[name] = f"{done} of {len(final)} final runs are through: the same command goes on"
        else:
            missing[name] = "its data is ready, it isn't run yet"
    return table.Content(scores, missing, plan.config.init, protocol, plan.normalization)


def write(workdir: epath.Path, found: table.Content) -> None:
    """Writes summary.json and the three tables; a full disk is only reported: the results are on it already."""
    created = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    forms = {
        SUMMARY: json.dumps(found.summary, indent=1, allow_nan=False) + "\n",
        "table.txt": table.terminal(found),
        "table.csv": table.as_csv(found),
        "table.tex": table.latex(found),
        "report.html": page.render(found, created),
    }
    try:
        for name, text in forms.items():
            write_whole(workdir / name, text)
    except OSError as error:
        _log.warning("the tables in %s can't be written: %s", workdir, error.strerror)


def update(plan: Plan, protocol: str, checks: dict[str, Check], failed: dict[str, str]) -> table.Content:
    """`content`, written while no other command writes."""
    with Turn(plan.workdir):
        found = content(plan, protocol, checks, failed)
        write(plan.workdir, found)
    return found
