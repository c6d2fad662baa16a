"""SARIF 2.1.0 (OASIS) for code scanning services: one run, one result per problem. A problem with a union branch has
one result per problem inside the branch.

`partialFingerprints` identifies a problem when lines above it are added or removed. A schema that could not be checked
is a notification of the invocation, because it concerns the run, not the code.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from headrace.compat.catalogue import CATALOGUE
from headrace.compat.check_result import CheckedSchema, CompatCheckResult, Failure, Problem, leaf_problems
from headrace.compat.finding import Severity

SCHEMA_URI = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
FINGERPRINT_NAME = "headraceFinding/v1"
LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning"}


def render_sarif(result: CompatCheckResult) -> str:
    results = [
        (checked, problem, leaf)
        for checked in result.checked
        for problem in checked.problems
        for leaf in leaf_problems(problem)
    ]
    rules = sorted({problem.rule for _, problem, _ in results})
    driver: dict[str, Any] = {"name": "headrace", "rules": [_rule(rule) for rule in rules]}
    if result.tool_version:
        driver["version"] = result.tool_version
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [_invocation(result)],
        "results": [_result(rules.index(problem.rule), checked, problem, leaf) for checked, problem, leaf in results],
    }
    document = {"$schema": SCHEMA_URI, "version": "2.1.0", "runs": [run]}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _rule(rule: str) -> dict[str, Any]:
    described = CATALOGUE.get(rule)
    if described is None:
        return {"id": rule}
    return {
        "id": rule,
        "shortDescription": {"text": described.purpose},
        "fullDescription": {"text": f"{described.purpose} {described.rationale}"},
    }


def _result(rule_index: int, checked: CheckedSchema, problem: Problem, leaf: Problem) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": problem.rule,
        "ruleIndex": rule_index,
        "level": LEVELS[problem.severity],
        "message": {"text": f"{leaf.sentence}. Fix: {leaf.fix}" if leaf.fix else leaf.sentence},
        "locations": [_location(checked.file, leaf)],
        "properties": {
            "subject": checked.subject,
            "compatibilityLevel": checked.level.value,
            "comparedWith": problem.version_name,
            **({"direction": problem.direction.value} if problem.direction else {}),
        },
    }
    if problem.fingerprint:
        result["partialFingerprints"] = {FINGERPRINT_NAME: problem.fingerprint}
    if problem.suppressed is not None:
        result["suppressions"] = [{"kind": "external", "justification": problem.suppressed.reason}]
    return result


def _location(file: str, leaf: Problem) -> dict[str, Any]:
    physical_location: dict[str, Any] = {"artifactLocation": {"uri": _uri(file)}}
    if leaf.line:
        physical_location["region"] = {"startLine": leaf.line, "startColumn": leaf.column}
        if leaf.excerpt is not None and not leaf.excerpt.before and not leaf.excerpt.after:
            physical_location["region"]["snippet"] = {"text": leaf.excerpt.text}
    location: dict[str, Any] = {"physicalLocation": physical_location}
    if leaf.pointer:
        location["logicalLocations"] = [{"fullyQualifiedName": leaf.pointer, "kind": "member"}]
    return location


def _invocation(result: CompatCheckResult) -> dict[str, Any]:
    return {
        "executionSuccessful": not result.failures,
        "toolExecutionNotifications": [
            *(_notification(failure) for failure in result.failures),
            *({"level": "note", "message": {"text": note}} for note in result.notes),
        ],
    }


def _notification(failure: Failure) -> dict[str, Any]:
    physical_location: dict[str, Any] = {"artifactLocation": {"uri": _uri(failure.file)}}
    if failure.position is not None and failure.position.line:
        physical_location["region"] = {"startLine": failure.position.line, "startColumn": failure.position.column}
    return {
        "level": "error",
        "descriptor": {"id": f"schema-{failure.kind.value}"},
        "message": {"text": failure.message},
        "locations": [{"physicalLocation": physical_location}],
    }


def _uri(file: str) -> str:
    """Returns a file's path as a relative URI with forward slashes. Colons are percent-encoded, because a colon in the
    first segment would be read as the end of a scheme."""
    path = quote(file.encode("utf-8", "surrogateescape"), safe="/~!$&'()*+,;=@-._")
    return path.removeprefix("./")
