"""Known problems of a repository that adopts the check late: a file of fingerprints that do not count.

A problem is known by its fingerprint, which outlives changes elsewhere in the schema; what the file says besides is
for the people who review it. A known problem that is gone is told, so that the file only ever shrinks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from headrace.compat.errors import InvalidBaselineFile
from headrace.compat.outcome import Checked, Suppressed, count_words

FORMAT = 1
REASON = "known when the check was adopted"


def baseline_text(checked: Sequence[Checked]) -> str:
    """The file that makes everything found now known; sorted, so that its changes read well."""
    known = {
        problem.fingerprint: {
            "fingerprint": problem.fingerprint,
            "file": item.file,
            "subject": item.subject,
            "rule": problem.rule,
            "sentence": problem.sentence,
        }
        for item in checked
        for problem in item.problems
        if problem.counts or (problem.suppressed is not None and problem.suppressed.reason == REASON)
    }
    rows = sorted(known.values(), key=lambda row: (row["file"], row["rule"], row["fingerprint"]))
    return json.dumps({"format": FORMAT, "findings": rows}, indent=2, ensure_ascii=False) + "\n"


def parse_baseline(text: str) -> Mapping[str, str]:
    """Fingerprint to file of the known problems.

    Raises:
        InvalidBaselineFile: the text is no such file.
    """
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidBaselineFile(f"not JSON: {error}") from None
    if not isinstance(document, dict) or not isinstance(document.get("findings"), list):
        raise InvalidBaselineFile('expected an object with "format" and "findings"')
    if document.get("format") != FORMAT:
        raise InvalidBaselineFile(f"format {document.get('format')!r}; this version reads format {FORMAT}")
    known = {}
    for number, row in enumerate(document["findings"]):
        if not isinstance(row, dict) or not isinstance(row.get("fingerprint"), str):
            raise InvalidBaselineFile(f"findings[{number}] has no fingerprint")
        known[row["fingerprint"]] = str(row.get("file", ""))
    return known


def leave_out_known(
    checked: Sequence[Checked], known: Mapping[str, str], origin: str
) -> tuple[tuple[Checked, ...], tuple[str, ...]]:
    """The same answers with the known problems marked, and what is to be told of those that are gone.

    Args:
        origin: the name of the file.
    """
    found: set[str] = set()
    marked = []
    for item in checked:
        problems = []
        for problem in item.problems:
            if problem.fingerprint in known:
                found.add(problem.fingerprint)
                if problem.counts:
                    problem = replace(problem, suppressed=Suppressed(REASON, origin))
            problems.append(problem)
        marked.append(replace(item, problems=tuple(problems)))
    files = {item.file for item in checked}
    gone = sum(fingerprint not in found and file in files for fingerprint, file in known.items())
    notes = (f"{count_words(gone, 'known problem')} gone; write {origin} anew",) if gone else ()
    return tuple(marked), notes
