"""Writes the tables of types and changes in docs/hive.md from what engines answered: `python tools/hive_page.py`.

What they answered stands in tests/golden/hive_readers, which the tests of tests/component/hive and tests/component/pig
compare with what they answer now. A test keeps the page current. Each table stands between a comment that names it and
one that ends it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "hive.md"
GOLDEN = ROOT / "tests" / "golden" / "hive_readers"
ENGINES = {
    "spark_sql": "Spark SQL",
    "spark_thrift_server": "Spark Thrift Server",
    "hiveserver2": "HiveServer2",
    "pig": "Pig, AvroStorage",
    "pig_hcatalog": "Pig, HCatLoader",
}
PIG = frozenset({"Pig, AvroStorage", "Pig, HCatLoader"})
"""Those whose names of types are not Hive's."""


def answers(part: str) -> dict[str, dict[str, Any]]:
    """By engine, what it answered.

    Raises:
        SystemExit: an engine's answers are not there, or are not of the cases of the others.
    """
    said = {}
    for name, engine in ENGINES.items():
        path = GOLDEN / f"{name}.{part}.json"
        if not path.exists():
            raise SystemExit(
                f"{path.relative_to(ROOT)} is not there: the tests of {engine} write it with HEADRACE_REWRITE_GOLDEN=1"
            )
        said[engine] = json.loads(path.read_text(encoding="utf-8"))
    cases = next(iter(said.values())).keys()
    for engine, answered in said.items():
        if answered.keys() != cases:
            differ = ", ".join(sorted(answered.keys() ^ cases))
            raise SystemExit(f"{part}: {engine} has answered other cases than the rest: {differ}")
    return said


def types() -> str:
    by_engine = answers("types")
    header = ("Avro type", *by_engine)
    cases = next(iter(by_engine.values()))
    rows = [(case, *(_type_cell(answered[case]) for answered in by_engine.values())) for case in cases]
    return _table(header, rows)


def _type_cell(said: dict[str, Any]) -> str:
    nested = "" if said["nested"] else ", nested otherwise"
    return f"{_code(said['type'])} {_code(_value(said['value']))}{nested}"


def changes() -> str:
    """One row for each history; what all engines answer stands once, and a difference is shown."""
    by_engine = answers("histories")
    rows = []
    for history, first in next(iter(by_engine.values())).items():
        columns = _columns(first)
        others: dict[str, list[str]] = {}
        for engine, answered in by_engine.items():
            if not _is_same(engine, answered[history], first):
                others.setdefault(_otherwise(answered[history], first), []).append(engine)
        otherwise = "; ".join(f"{', '.join(engines)}: {said}" for said, engines in others.items())
        rows.append((history, columns, _history_cell(first), otherwise or f"all {len(by_engine)}"))
    return _table(("change of `c`", "columns", "rows, by version", "engines"), rows)


def _is_same(engine: str, said: dict[str, Any], first: dict[str, Any]) -> bool:
    if engine in PIG:
        return list(said["columns"]) == list(first["columns"]) and said.get("rows") == first["rows"]
    return said == first


def _otherwise(said: dict[str, Any], first: dict[str, Any]) -> str:
    """What is not as elsewhere; where the rows are the same it is the columns."""
    is_of_columns = said.get("rows") == first["rows"]
    return f"{_columns(said)}, {_history_cell(said)}" if is_of_columns else _history_cell(said)


def _columns(said: dict[str, Any]) -> str:
    return ", ".join(f"{_code(name)} {_code(kind)}" for name, kind in said["columns"].items())


def _history_cell(said: dict[str, Any]) -> str:
    if "refused" in said:
        return f"refused, {_code(said['refused'])}"
    return " → ".join(_code(_row(row)) for row in said["rows"])


def _row(values: list[Any]) -> str:
    return ", ".join(map(_value, values))


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _code(text: str) -> str:
    quoted = text.replace("|", "\\|").replace("\n", " ").replace("\x01", "␁")
    return f"`` {quoted} ``" if "`" in quoted else f"`{quoted}`"


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    cells = [list(header), *map(list, rows)]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join((lines[0], "|" + "---|" * len(cells[0]), *lines[1:])) + "\n"


def page(text: str) -> str:
    """The page with its tables as they should be."""
    for name, table in {"types": types(), "changes": changes()}.items():
        begin, end = f"<!-- {name}: made by tools/hive_page.py -->\n", f"<!-- end of {name} -->\n"
        pattern = re.compile(f"({re.escape(begin)}).*?({re.escape(end)})", re.DOTALL)
        text, count = pattern.subn(lambda match, table=table: f"{match[1]}\n{table}\n{match[2]}", text)
        if count != 1:
            raise SystemExit(f"{PAGE}: expected one table between {begin.strip()} and {end.strip()}, found {count}")
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
