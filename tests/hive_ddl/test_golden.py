"""HiveQL of complete cases: `tests/golden/hive_ddl/<case>/` holds the schemas and the expected script.

`HEADRACE_REWRITE_GOLDEN=1 pytest tests/hive_ddl/test_golden.py` rewrites the scripts; review their diff like code.
"""

from __future__ import annotations

from headrace.hive_ddl.ops import Op
from headrace.hive_ddl.plan import plan_partitions, plan_table
from headrace.hive_ddl.render import render_script
from headrace.hive_ddl.table import TableState, desired_table
from support.checkout import GOLDEN
from support.golden import golden

CASES = tuple(GOLDEN.glob("hive_ddl/*/desired.avsc"))
LITERAL_CHARS_MAX = 1200  # lowered, so that a case can exceed it with a short schema


def table(text: str, topic: str, version: int) -> TableState:
    return desired_table(
        database="headrace",
        name=topic.replace(".", "_"),
        location=f"file:///warehouse/{topic}",
        topic=topic,
        subject=f"{topic}-value",
        version=version,
        schema_text=text.strip(),
        revision=f"{version}-w{version}",
        literal_chars_max=LITERAL_CHARS_MAX,
    )


def test_scripts_match_golden_files() -> None:
    scripts = {f"hive_ddl/{case}/expected.hql": script(case) for case in sorted(each.parent.name for each in CASES)}
    assert scripts == {path: golden(path, text) for path, text in scripts.items()}


def script(case: str) -> str:
    directory = GOLDEN / "hive_ddl" / case
    topic = f"shop.{case}"
    current = None
    if (directory / "current.avsc").exists():
        current = table((directory / "current.avsc").read_text(encoding="utf-8"), topic, 1)
    desired = table((directory / "desired.avsc").read_text(encoding="utf-8"), topic, 2)
    day, prefix = "2026-01-31", desired.location
    existing = {(day, "06"): f"{prefix}/dt={day}/hr=06"} if current is not None else {}
    desired_partitions = {(day, hour): f"{prefix}/dt={day}/hr={hour}" for hour in ("07", "08")}
    if case == "moved_partition":
        desired_partitions[day, "06"] = f"{prefix}/_g2/dt={day}/hr=06"
    dropped = [(day, "04"), (day, "05")] if case == "dropped_partitions" else []
    partition_ops = plan_partitions(desired, existing, desired_partitions, dropped)
    ops: tuple[Op, ...] = (*plan_table(current, desired), *partition_ops)
    return render_script(ops)
