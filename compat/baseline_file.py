"""Baseline file: the problems that a repository already had when it adopted the check. They do not make the check fail.

A known problem is identified by its file and its fingerprint (see `compute_fingerprint`), because two files may have
the same subject. The fingerprint does not change when other parts of the schema change. A known problem of a file that
no longer exists, such as a renamed one, applies to another file with the same fingerprint. Fixed problems are reported,
so that users remove them and the baseline file only shrinks.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.compat.check_result import CheckedSchema, SuppressedBy, pluralize
from headrace.compat.errors import InvalidBaselineFile

FORMAT = 1
REASON = "known when the check was adopted"


@dataclass(frozen=True, slots=True)
class KnownProblem:
    file: str
    fingerprint: str


def render_baseline(checked: Sequence[CheckedSchema]) -> str:
    """Returns the text of a baseline file that lists every current problem, sorted to keep diffs small.

    Args:
        checked: the results of this run. Warnings and problems that the settings suppress are not listed.
    """
    known = {
        (item.file, problem.fingerprint): {
            "fingerprint": problem.fingerprint,
            "file": item.file,
            "subject": item.subject,
            "rule": problem.rule,
            "sentence": problem.sentence,
        }
        for item in checked
        for problem in item.problems
        if problem.is_blocking or (problem.suppressed is not None and problem.suppressed.reason == REASON)
    }
    rows = sorted(known.values(), key=lambda row: (row["file"], row["rule"], row["fingerprint"]))
    return json.dumps({"format": FORMAT, "findings": rows}, indent=2, ensure_ascii=False) + "\n"


def parse_baseline(text: str) -> tuple[KnownProblem, ...]:
    """Returns the known problems that the text of a baseline file lists.

    Raises:
        InvalidBaselineFile: the text is not a baseline file.
    """
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidBaselineFile(f"not JSON: {error}") from None
    if not isinstance(document, dict) or not isinstance(document.get("findings"), list):
        raise InvalidBaselineFile('expected an object with "format" and "findings"')
    if document.get("format") != FORMAT:
        raise InvalidBaselineFile(
            f"the file's format is {document.get('format')!r}, and this version of Headrace reads only format {FORMAT}"
        )
    known = []
    for number, row in enumerate(document["findings"]):
        if not isinstance(row, dict) or not isinstance(row.get("fingerprint"), str):
            raise InvalidBaselineFile(f"findings[{number}] has no fingerprint")
        known.append(KnownProblem(str(row.get("file", "")), row["fingerprint"]))
    return tuple(dict.fromkeys(known))


def mark_known(
    checked: Sequence[CheckedSchema], known: Sequence[KnownProblem], origin: str, file_exists: Callable[[str], bool]
) -> tuple[tuple[CheckedSchema, ...], tuple[str, ...]]:
    """Marks known problems as suppressed. Returns the results with these marks, and notes (sentences for the user)
    about known problems that were fixed.

    Args:
        checked: the results of this run.
        known: the problems that the baseline file lists.
        origin: name of the baseline file.
        file_exists: whether the file at a path still exists. A known problem of a missing file, such as a renamed one,
            applies to one other file that has a problem with the same fingerprint.
    """
    rows = set(known)
    moved = Counter(row.fingerprint for row in known if not file_exists(row.file))
    found: set[KnownProblem] = set()
    marked = []
    for item in checked:
        matched: set[str] = set()
        problems = []
        for problem in item.problems:
            row = KnownProblem(item.file, problem.fingerprint)
            if row in rows:
                found.add(row)
            elif problem.fingerprint not in matched and moved[problem.fingerprint]:
                moved[problem.fingerprint] -= 1
                matched.add(problem.fingerprint)
            is_known = row in rows or problem.fingerprint in matched
            if is_known and problem.is_blocking:
                problem = replace(problem, suppressed=SuppressedBy(REASON, origin))
            problems.append(problem)
        marked.append(replace(item, problems=tuple(problems)))
    files = {item.file for item in checked}
    fixed = sum(row not in found and row.file in files for row in known)
    notes = (
        (f"{pluralize(fixed, 'known problem')} fixed; rewrite {origin} with --write-baseline {origin}",)
        if fixed
        else ()
    )
    return tuple(marked), notes
