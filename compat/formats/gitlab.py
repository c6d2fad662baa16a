"""GitLab's code quality report: a JSON array in a subset of Code Climate's format.

GitLab compares the reports of two pipelines by `fingerprint` and shows entries as new if only the later report has
them. Fingerprints must be unique within a report. They include the file, because two files may have the same subject.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import PurePosixPath
from typing import Any

from headrace.compat.check_result import CheckedSchema, CompatCheckResult, Failure, Problem, leaf_problems
from headrace.compat.finding import Severity

SEVERITIES = {Severity.ERROR: "major", Severity.WARNING: "minor"}


def render_gitlab(result: CompatCheckResult) -> str:
    entries = [
        _problem(checked, problem, leaf)
        for checked in result.checked
        for problem in checked.problems
        if problem.suppressed is None
        for leaf in leaf_problems(problem)
    ]
    entries += [_failure(failure) for failure in result.failures]
    seen: Counter[str] = Counter()
    for entry in entries:
        base = entry["fingerprint"]
        seen[base] += 1
        if seen[base] > 1:
            entry["fingerprint"] = _digest(f"{base} {seen[base]}")
    return json.dumps(entries, indent=2, ensure_ascii=False) + "\n"


def _problem(checked: CheckedSchema, problem: Problem, leaf: Problem) -> dict[str, Any]:
    description = f"{leaf.sentence}. Fix: {leaf.fix}" if leaf.fix else leaf.sentence
    fingerprint = _digest(f"{checked.file} {problem.fingerprint or f'{problem.rule} {problem.sentence}'}")
    return _entry(description, problem.rule, fingerprint, SEVERITIES[problem.severity], checked.file, leaf.line)


def _failure(failure: Failure) -> dict[str, Any]:
    line = failure.position.line if failure.position else 0
    fingerprint = _digest(f"{failure.kind.value} {failure.file}")
    return _entry(failure.message, f"schema-{failure.kind.value}", fingerprint, "critical", failure.file, line)


def _entry(description: str, check_name: str, fingerprint: str, severity: str, file: str, line: int) -> dict[str, Any]:
    return {
        "description": description,
        "check_name": check_name,
        "fingerprint": fingerprint,
        "severity": severity,
        # GitLab expects a path relative to the repository without a leading "./".
        "location": {"path": str(PurePosixPath(file)), "lines": {"begin": max(1, line)}},
    }


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
