"""Writes the tables of types and changes in docs/hive.md from what engines answered: `python tools/hive_page.py`.

What they answered stands in tests/golden/hive_readers, which the tests of tests/component/hive compare with what they
answer now. A test keeps the page current. Each table stands between a comment that names it and one that ends it.
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
    "pig": "Pig",
}


def answers(part: str) -> dict[str, dict[str, Any]]:
    """By engine, what it answered; those whose tests have written no file are left out."""
    files = {name: GOLDEN / f"{name}.{part}.json" for name in ENGINES}
    return {
        ENGINES[name]: json.loads(path.read_text(encoding="utf-8")) for name, path in files.items() if path.exists()
    }


def types() -> str:
    by_engine = answers("types")
    header = ("Avro type", *by_engine)
    cases = dict.fromkeys(case for answered in by_engine.values() for case in answered)
    rows = [(case, *(_type_cell(answered.get(case)) for answered in by_engine.values())) for case in cases]
    return _table(header, rows)


def _type_cell(said: dict[str, Any] | None) -> str:
    if said is None:
        return ""
    nested = "" if said["nested"] else ", nested otherwise"
    return f"{_code(said['type'])} {_code(_value(said['value']))}{nested}"


def changes() -> str:
    """One row for each history; what all engines answer stands once, and a difference is named."""
    by_engine = answers("histories")
    rows = []
    for history in dict.fromkeys(name for answered in by_engine.values() for name in answered):
        said = {engine: answered[history] for engine, answered in by_engine.items() if history in answered}
        first = next(iter(said.values()))
        columns = ", ".join(f"{_code(name)} {_code(kind)}" for name, kind in first["columns"].items())
        values = " → ".join(_code(_row(row)) for row in first["rows"])
        others = [engine for engine, one in said.items() if one != first]
        rows.append((history, columns, values, f"otherwise: {', '.join(others)}" if others else f"all {len(said)}"))
    return _table(("field `c`", "columns", "rows, by version", "engines"), rows)


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
