"""What a run shows on a terminal, and the profile it writes."""

import os
import pty
import re
import termios

import pytest

from tests.integration.command import json_lines, terminal_text


def test_a_terminal_shows_a_bar_with_speed_and_time_left(command, tmp_path):
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 120))
    process = command.start(tmp_path / "run", {"eval.every_steps": None}, stderr=theirs)
    os.close(theirs)
    shown = terminal_text(ours)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, shown
    text = shown
    # 17% ... | 5/30 [00:01<00:03, 9.7step/s, loss=2.2, img/s=140]
    bars = re.findall(r"(\d+)%\|[^|]*\| (\d+)/30 \[\d\d:\d\d<(\d\d:\d\d|\?), [^\]]*\]", text)
    assert bars and any(left != "?" for _, _, left in bars)
    assert "img/s=" in text and "loss=" in text
    assert "step 5/30" not in text  # no log line beside the bar
    assert out.splitlines()[-1].startswith("done step=30 ")


def test_elsewhere_log_lines_tell_speed_and_time_left(command, tmp_path):
    sets = {"profile.start_step": 12, "profile.num_steps": 3, "total_steps": 20, "eval.every_steps": None}
    done = command.run(tmp_path / "run", sets)
    assert done.code == 0, done.err
    lines = [line for line in done.err.splitlines() if re.search(r"step \d+/20  loss ", line)]
    assert [int(re.search(r"step (\d+)/", line)[1]) for line in lines] == [1, 5, 10, 15, 20]
    assert all(re.search(r"lr \S+  grad_norm \S+  [\d.]+ img/s  eta [\d:]+", line) for line in lines)
    assert "%|" not in done.err

    traces = list((tmp_path / "run" / "profile").rglob("*.xplane.pb"))
    assert len(traces) == 1 and traces[0].stat().st_size > 1000
    assert f"profile written to {tmp_path}/run/profile" in done.err

    times = [line for line in json_lines(tmp_path / "run" / "metrics.jsonl") if "time/total" in line]
    assert len(times) == 1
    parts = [
        value
        for key, value in times[0].items()
        if key.startswith("time/") and key not in ("time/total", "time/goodput")
    ]
    assert sum(parts) == pytest.approx(times[0]["time/total"], rel=1e-3)
