"""Printed programs for pairs of schemas, with one golden file per kind of conversion.

`HEADRACE_REWRITE_GOLDEN=1` rewrites the files; review their diff like code.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from headrace.avro_codec import CapturedTime
from headrace.avro_codec.core import library
from headrace.avro_codec.program import FRAMES_MAX, SLOTS_MAX, Op
from headrace.avro_schema import Schema, find_time_fields, parse_schema
from headrace.loader.project.projection import compile_projection
from support.checkout import ROOT
from support.loader.projection_oracle import states_of

GOLDEN = ROOT / "tests" / "golden" / "programs"


def record(*fields: tuple[str, Any], name: str = "Event") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": field, "type": kind} for field, kind in fields]}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


INNER = record(("a", "int"), ("b", "string"), name="Inner")
WIDER = record(("a", "long"), ("b", "string"), ("c", ["null", "int"]), name="Inner")
PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}

CASES: dict[str, tuple[dict[str, Any], ...]] = {
    "copied": (record(("at", "long"), ("name", "string"), ("maybe", ["null", "double"]), ("in", INNER)),),
    "readable": (record(("price", PRICE), ("at", MILLIS)),),
    "added": (record(("a", "int")), record(("a", "int"), ("b", ["null", "string"]))),
    "widened": (
        record(("a", "int"), ("b", "long"), ("c", "float"), ("d", "int")),
        record(("a", "long"), ("b", "double"), ("c", "double"), ("d", "float")),
    ),
    "reordered": (record(("b", "string"), ("a", "int")), record(("a", "int"), ("b", "string"), ("c", "int"))),
    "now nullable": (record(("a", "int")), record(("a", ["null", "int"]))),
    "null last": (record(("a", ["int", "null"]), ("b", ["null", "int"])),),
    "enum grown": tuple(
        record(("e", {"type": "enum", "name": "E", "symbols": symbols})) for symbols in (["A", "B"], ["B", "A", "C"])
    ),
    "members": (record(("u", ["null", "string", "int"])), record(("u", ["null", "string", "int", "boolean"]))),
    "sibling": (record(("a", "int")), record(("a", "string"))),
    "arrays": (record(("list", array(INNER))), record(("list", array(WIDER)))),
    "maps": (
        record(("map", {"type": "map", "values": array("int")})),
        record(("map", {"type": "map", "values": array(["null", "int"])})),
    ),
    "nothing": (record(("list", array("null"))),),
}


@pytest.mark.parametrize("name", CASES)
def test_programs_match_the_golden_files(name: str) -> None:
    versions = [parse_schema(json.dumps(version)) for version in CASES[name]]
    state = states_of(*versions)[-1]
    load = parse_schema(state.text)
    found = f"load schema {state.text}\n"
    for number, version in enumerate(versions, 1):
        found += f"\nversion {number}\n{_printed(version, load, state.routes[number])}\n"
    path = GOLDEN / f"{name.replace(' ', '-')}.txt"
    if os.environ.get("HEADRACE_REWRITE_GOLDEN"):
        path.write_text(found, encoding="utf-8")
    assert found == path.read_text(encoding="utf-8")


def _printed(writer: Schema, load: Schema, route: Any) -> str:
    program = compile_projection(writer, load, find_time_fields(writer, "at", ()), CapturedTime(), route).program
    return str(program)


def test_unsupported_conversion_has_no_program() -> None:
    node = record(("next", ["null", "Node"]), name="Node")
    writer = parse_schema(json.dumps(node))
    assert compile_projection(writer, parse_schema(states_of(writer)[-1].text), (), CapturedTime()).program is None


def test_constants_of_python_and_c_are_equal() -> None:
    header = (ROOT / "avro_codec" / "core" / "program.h").read_text(encoding="utf-8")
    names = [line.strip().partition(",")[0].split()[0] for line in header.splitlines() if line.startswith("    OP_")]
    assert [name.removeprefix("OP_") for name in names] == [op.name for op in Op]
    assert f"#define HR_FRAMES_MAX {FRAMES_MAX} " in header
    assert f"#define HR_SLOTS_MAX {SLOTS_MAX} " in header
    core = (ROOT / "avro_codec" / "core" / "core.h").read_text(encoding="utf-8")
    assert f"#define HR_ABI {library.ABI} " in core
    assert f"#define HR_PROGRAM {library.PROGRAM_VERSION} " in core
