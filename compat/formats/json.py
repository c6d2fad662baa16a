"""JSON output for programs: one object; `JSON_FORMAT` is the version of its structure."""

from __future__ import annotations

import json
from typing import Any

from headrace.compat.check_result import CheckedSchema, CompatCheckResult, Failure, Problem

JSON_FORMAT = 1
"""Version of the structure of the JSON output: incremented on incompatible changes; keys may be added without an
increment."""


def render_json(result: CompatCheckResult) -> str:
    return json.dumps(result_document(result), indent=2, ensure_ascii=False) + "\n"


def result_document(result: CompatCheckResult) -> dict[str, Any]:
    """Returns the result of a run (all schemas, failures and notes) as a JSON value."""
    return {
        "format": JSON_FORMAT,
        "tool": {"name": "headrace", "version": result.tool_version},
        "compatible": result.is_compatible,
        "reports": [checked_schema_document(checked) for checked in result.checked],
        "errors": [failure_document(failure) for failure in result.failures],
        "notes": list(result.notes),
    }


def checked_schema_document(checked: CheckedSchema) -> dict[str, Any]:
    """Returns the result of one checked schema as a JSON value."""
    return {
        "file": checked.file,
        "subject": checked.subject,
        "baseline": checked.baseline,
        "new": checked.is_new,
        "compatible": checked.is_compatible,
        "level": checked.level.value,
        "level_origin": checked.level_origin,
        "compared": [{"version": version.version, "name": version.name} for version in checked.compared],
        "known_versions": checked.version_count,
        "findings": [
            {**problem_document(problem), "fingerprint": problem.fingerprint, **_suppressed(problem)}
            for problem in checked.problems
        ],
        "notes": list(checked.notes),
    }


def problem_document(problem: Problem) -> dict[str, Any]:
    """Returns one problem as a JSON value; findings of lints have no direction and no message of Avro."""
    out: dict[str, Any] = {
        "rule": problem.rule,
        "severity": problem.severity.value,
        "direction": problem.direction.value if problem.direction else None,
        "version": problem.version,
        "version_name": problem.version_name,
        "pointer": problem.pointer,
        "line": problem.line,
        "column": problem.column,
        "sentence": problem.sentence,
        "fix": problem.fix,
        "reader": problem.reader,
        "writer": problem.writer,
    }
    if problem.avro_location:
        out["avro"] = {"location": problem.avro_location, "message": problem.avro_message}
    if problem.causes:
        out["causes"] = [problem_document(cause) for cause in problem.causes]
    return out


def _suppressed(problem: Problem) -> dict[str, Any]:
    if problem.suppressed is None:
        return {}
    return {"suppressed": {"reason": problem.suppressed.reason, "origin": problem.suppressed.origin}}


def failure_document(failure: Failure) -> dict[str, Any]:
    """Converts a failure, such as an invalid schema file or an unreadable baseline, to a JSON value."""
    position = failure.position
    return {
        "kind": failure.kind.value,
        "file": failure.file,
        "line": position.line if position else None,
        "column": position.column if position else None,
        "pointer": position.pointer if position else None,
        "message": failure.message,
    }
