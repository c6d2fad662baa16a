"""Generates the tables of types and changes in docs/hive.md from results of query engines: `python tools/hive_page.py`.

The results are in tests/golden/hive_readers. The tests in tests/component/hive and tests/component/pig run the engines
and compare their results with these files. Another test fails if the page differs from the generated one. A comment
with the name of the table precedes each table in the page, and another one follows it.
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
"""Engines that name types differently than Hive."""


def results(part: str) -> dict[str, dict[str, Any]]:
    """Returns the results of each engine, by the engine's name and the case.

    Args:
        part: the part of the results to read: `types` or `histories`.

    Raises:
        SystemExit: the results of an engine are missing, or it has other cases than the first engine.
    """
    result = {}
    for name, engine in ENGINES.items():
        path = GOLDEN / f"{name}.{part}.json"
        if not path.exists():
            raise SystemExit(
                f"{path.relative_to(ROOT)} is missing: the tests of {engine} write it with HEADRACE_REWRITE_GOLDEN=1"
            )
        result[engine] = json.loads(path.read_text(encoding="utf-8"))
    cases = next(iter(result.values())).keys()
    for engine, results_by_case in result.items():
        if results_by_case.keys() != cases:
            differ = ", ".join(sorted(results_by_case.keys() ^ cases))
            raise SystemExit(f"{part}: {engine} has results for other cases than the rest: {differ}")
    return result


def types() -> str:
    by_engine = results("types")
    header = ("Avro type", *by_engine)
    cases = next(iter(by_engine.values()))
    rows = [(case, *(_type_cell(results_by_case[case]) for results_by_case in by_engine.values())) for case in cases]
    return _table(header, rows)


def _type_cell(result: dict[str, Any]) -> str:
    nested = "" if result["nested"] else ", nested otherwise"
    return f"{_code(result['type'])} {_code(_value(result['value']))}{nested}"


def changes() -> str:
    """Returns the table of changes. A row has the history of a column, the result of the first engine, and the engines
    with other results."""
    by_engine = results("histories")
    rows = []
    for history, first in next(iter(by_engine.values())).items():
        columns = _columns(first)
        others: dict[str, list[str]] = {}
        for engine, results_by_case in by_engine.items():
            if not _is_same(engine, results_by_case[history], first):
                others.setdefault(_difference(results_by_case[history], first), []).append(engine)
        differences = "; ".join(f"{', '.join(engines)}: {result}" for result, engines in others.items())
        rows.append((history, columns, _history_cell(first), differences or f"all {len(by_engine)}"))
    return _table(("change of `c`", "columns", "rows, by version", "engines"), rows)


def _is_same(engine: str, result: dict[str, Any], first: dict[str, Any]) -> bool:
    if engine in PIG:
        return list(result["columns"]) == list(first["columns"]) and result.get("rows") == first["rows"]
    return result == first


def _difference(result: dict[str, Any], first: dict[str, Any]) -> str:
    """Formats the result of an engine that differs from that of the first engine: its rows, and also its columns if
    only the columns differ."""
    is_of_columns = result.get("rows") == first["rows"]
    return f"{_columns(result)}, {_history_cell(result)}" if is_of_columns else _history_cell(result)


def _columns(result: dict[str, Any]) -> str:
    return ", ".join(f"{_code(name)} {_code(kind)}" for name, kind in result["columns"].items())


def _history_cell(result: dict[str, Any]) -> str:
    if "refused" in result:
        return f"refused, {_code(result['refused'])}"
    return " → ".join(_code(_row(row)) for row in result["rows"])


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
    """Returns the text of the page with newly generated tables."""
    for name, table in {"types": types(), "changes": changes()}.items():
        begin, end = f"<!-- {name}: made by tools/hive_page.py -->\n", f"<!-- end of {name} -->\n"
        pattern = re.compile(f"({re.escape(begin)}).*?({re.escape(end)})", re.DOTALL)
        text, count = pattern.subn(lambda match, table=table: f"{match[1]}\n{table}\n{match[2]}", text)
        if count != 1:
            raise SystemExit(f"{PAGE}: expected one table between {begin.strip()} and {end.strip()}, found {count}")
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
