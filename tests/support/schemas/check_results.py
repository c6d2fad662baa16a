"""Results of `headrace compat check` that contain every case which an output format must render."""

from __future__ import annotations

from dataclasses import replace

from headrace.avro_schema import Position, parse_schema
from headrace.compat import CompatibilityLevel, VersionedSchema, check_level
from headrace.compat.check_result import (
    CheckedSchema,
    CompatCheckResult,
    Failure,
    FailureKind,
    SuppressedBy,
    add_fingerprints,
)
from headrace.compat.report import to_checked_schema

V1 = '{"type": "record", "name": "Order", "fields": [\n  {"name": "id", "type": "long"}\n]}\n'
V3 = (
    '{"type": "record", "name": "Order", "fields": [\n  {"name": "id", "type": "string"},\n'
    '  {"name": "note", "type": ["null", {"type": "record", "name": "Note", "fields": []}]},\n'
    '  {"name": "rate", "type": "int"}\n]}\n'
)
HOSTILE = 'a,b:c%d\r\n<&>"|`\x00\udcff.avsc'


def checked(candidate: str = V3, earlier: str = V1, file: str = "schemas/order.avsc") -> CheckedSchema:
    """Returns the result of checking one schema against one earlier version.

    Args:
        candidate: text of the schema.
        earlier: text of the earlier version.
        file: name of the schema's file.
    """
    history = [VersionedSchema(7, parse_schema(earlier, source="v7"), "main:schemas/order.avsc")]
    report = check_level(parse_schema(candidate, source=file), history, CompatibilityLevel.FULL)
    return add_fingerprints(
        to_checked_schema(report, subject="order-value", baseline="git:main", level_origin="as requested")
    )


def everything() -> CompatCheckResult:
    """Returns a result with incompatible, suppressed, new and compatible schemas, with failures with and without a
    position, and with names that contain characters special to the formats."""
    incompatible = checked()
    first, *others = incompatible.problems
    suppressed = replace(
        incompatible, file="b.avsc", problems=(replace(first, suppressed=SuppressedBy("we know", "settings")),)
    )
    new = CheckedSchema(
        "new schema.avsc", "n", "git:main", CompatibilityLevel.BACKWARD, "the default", (), 0, is_new=True
    )
    hostile = replace(
        incompatible, file=HOSTILE, problems=tuple(replace(item, sentence=HOSTILE, fix="") for item in others)
    )
    return CompatCheckResult(
        (incompatible, suppressed, new, checked(V1, V1, "same.avsc"), hostile),
        (
            Failure(FailureKind.INVALID, "x.avsc", "expected, a: value %", Position("/a", 3, 4)),
            Failure(FailureKind.REGISTRY, "registry http://127.0.0.1:1", "cannot be reached"),
        ),
        ("a note with %, : and\nlines",),
        "1.2.3",
    )
