"""The pages of loads, on run logs with all outcomes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from headrace.console.drawing.loads import load_bars, load_phases, task_bars
from headrace.console.drawing.periods import ShownPeriod
from headrace.loader.report import TaskTime
from headrace.loader.run_log import RunLine, append_line
from headrace.settings import LoaderSettings, Settings
from support.console import NOW_MS, console_world
from support.console_loads import FAILED, LINES, SLOW


@pytest.fixture
def client(tmp_path: Path) -> FlaskClient:
    for line in LINES:
        append_line(tmp_path / "logs" / "runs.jsonl", line)
    return console_world(tmp_path).client()


def test_loads_of_the_day_are_listed_with_their_outcomes(client: FlaskClient) -> None:
    rows = json.loads(client.get("/loads?as=json").text)["rows"]
    outcomes = [(row["outcome"], row["kind"]) for row in rows]
    assert outcomes == [
        ("failed", "load"),
        ("committed", "compact"),
        ("yielded", "load"),
        ("problems", "load"),
        ("refused", "load"),
        ("nothing", "load"),
    ]
    assert (rows[3]["duration"], rows[3]["rows"], rows[3]["imbalance"]) == (100.0, 1_000, 1.5)
    page = client.get("/loads").text
    assert "5 loads, 1 failed, 1 refused, 1 problems, 1 nothing, 1 yielded" in page
    earlier = re.search(r'href="(/loads\?at=\d+)" rel="prev"', page)
    assert earlier is not None
    before = json.loads(client.get(f"{earlier[1]}&as=json").text)["rows"]
    assert [row["outcome"] for row in before] == ["committed"]


def test_shape_of_a_bar_is_the_outcome_and_its_height_the_duration() -> None:
    bars = {bar.outcome: bar for bar in load_bars([one for one in LINES if one.kind == "load"], DAY)}
    depths = {name: re.search(r"V(\d+)h-", bar.path)[1] for name, bar in bars.items()}  # type: ignore[index]
    assert depths == {"nothing": "120", "refused": "132", "problems": "120", "failed": "144"}
    assert re.findall(r"M(\S+) (\S+?)h", bars["problems"].path)[1][1] == f"{120 - 104 - 10:.1f}"  # the mark
    assert bars["problems"].hidden == 1  # the load that yielded meanwhile
    tops = {name: float(bar.path.split()[1].partition("h")[0]) for name, bar in bars.items()}
    assert tops["problems"] == 120 - 104
    assert tops["nothing"] == pytest.approx(120 - 104 * 0.09, abs=0.1)


DAY = ShownPeriod.of("24h", "", NOW_MS)


def test_bar_of_a_load_that_has_just_started_ends_within_the_drawing() -> None:
    (bar,) = load_bars([RunLine(DAY.end_ms - 1, 86_400_000, "committed", 0)], DAY)
    found = re.match(r"M(\S+) \S+?h([\d.]+)V", bar.path)
    assert found is not None
    assert float(found[1]) + float(found[2]) <= 1000.1


def test_run_has_its_phases_tasks_and_topics(client: FlaskClient) -> None:
    page = client.get(f"/loads/{SLOW.run_id}").text
    phases = [(one.duration_ms, one.x, one.width) for one in load_phases(SLOW)]
    assert phases == [(10_000, 0, 100), (60_000, 100, 600), (30_000, 700, 300)]
    assert [(one.x, one.width, one.is_slowest) for one in task_bars(SLOW)] == [(100, 200, False), (100, 600, True)]
    assert "task 1, slowest" in page
    assert "1.5 times the mean" in page
    topics = json.loads(client.get(f"/loads/{SLOW.run_id}?as=json").text)["rows"]
    assert [(row["topic"], row["outcome"]) for row in topics[1:]] == [("raw", "waiting"), ("orders", "loaded")]
    tasks = json.loads(client.get(f"/loads/{SLOW.run_id}?as=json&show=tasks").text)["rows"]
    assert [(row["task"], row["seconds"], row["rows"]) for row in tasks] == [("0", 20.0, 400), ("1", 60.0, 600)]


def test_problems_of_a_run_have_commands(client: FlaskClient) -> None:
    page = client.get(f"/loads/{SLOW.run_id}").text
    assert "<script>alert" not in page
    assert "headrace load plan --topic &#39;&lt;script&gt;alert(1)&lt;/script&gt;&#39;" in page
    assert "headrace quarantine preview raw" in page
    failed = client.get(f"/loads/{FAILED.started_at_ms}").text
    assert "The broker refused the connection." in failed
    assert "headrace load status" in failed
    assert "Commit 6 was made by another load." in client.get("/loads/r").text


def test_tasks_outside_of_their_load_are_marked() -> None:
    line = replace(SLOW, task_times=(TaskTime(0, SLOW.started_at_ms + 3_600_000, 20_000, 0, 0),))
    assert load_phases(line) == []
    (bar,) = task_bars(line)
    assert (bar.x, bar.width, bar.is_outside) == (800, 200, True)


def test_missing_damaged_and_disabled_run_logs_have_pages(tmp_path: Path) -> None:
    client = console_world(tmp_path).client()
    assert "No load started within these 24 hours." in client.get("/loads").text
    assert client.get("/loads/of%20nobody").status_code == 404
    (tmp_path / "logs").mkdir()
    line = '{"started_at_ms":%s,"duration_ms":%s,"outcome":"committed","exit_code":0%s}\n'
    strange = [
        ("null", "5", ""),
        (NOW_MS, '"x"', ""),
        (NOW_MS, "-5", ""),
        (NOW_MS, "5", ',"task_times":[["x",1,2,3,4]]'),
    ]
    text = "".join(line % one for one in strange) + "garbage\n"
    (tmp_path / "logs" / "runs.jsonl").write_text(text)
    assert client.get("/loads").status_code == 200
    assert client.get(f"/loads/{NOW_MS}").status_code == 200
    off = console_world(tmp_path, settings=Settings(loader=LoaderSettings(run_log="off"))).client()
    for path in ("/loads", "/loads/1"):
        assert "loads do not write a run log" in off.get(path).text.replace("Loader.run_log is off: ", "")


def test_page_changes_with_the_run_log(client: FlaskClient, tmp_path: Path) -> None:
    tag = {"If-None-Match": client.get("/loads").headers["ETag"]}
    assert client.get("/loads", headers=tag).status_code == 304
    append_line(tmp_path / "logs" / "runs.jsonl", LINES[-1])
    assert client.get("/loads", headers=tag).status_code == 200
