"""Suppressions: accepted problems, each with a reason, a rule or a place, and possibly an expiry date.

A suppression needs a reason. After its expiry date it no longer applies. Unused suppressions are reported, so that they
get removed. The current date is an argument.
"""

from __future__ import annotations

import datetime
import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from headrace.compat.check_result import CheckedSchema, Problem, SuppressedBy, pluralize
from headrace.compat.errors import InvalidSuppression

KEYS: Final = ("rule", "path", "subject", "field", "reason", "expires")


@dataclass(frozen=True, slots=True)
class Suppression:
    """Patterns of the problems to suppress (`*`, `?`, `[a-z]`); `expires` is the last day on which it applies.

    A value without wildcards matches itself, also if it contains brackets. `field` is matched against the dotted field
    path, such as `header.region` or `items[].price`.
    """

    reason: str
    rule: str = "*"
    path: str = "*"
    subject: str = "*"
    field: str = "*"
    expires: datetime.date | None = None

    def __post_init__(self) -> None:
        if not self.reason.strip():
            raise InvalidSuppression('a suppression needs a reason; add reason = "…"')
        if (self.rule, self.path, self.subject, self.field) == ("*",) * 4:
            raise InvalidSuppression("a suppression must not match everything; set rule, path, subject or field")

    def covers(self, checked: CheckedSchema, problem: Problem) -> bool:
        return (
            _matches(problem.rule, self.rule)
            and _matches_path(checked.file, self.path)
            and _matches(checked.subject, self.subject)
            and _matches(_field_path(problem), self.field)
        )

    def is_active(self, today: datetime.date) -> bool:
        return self.expires is None or today <= self.expires

    def describe(self) -> str:
        """Returns the patterns of the suppression as text, which identifies it in messages."""
        named = {"rule": self.rule, "path": self.path, "subject": self.subject, "field": self.field}
        return ", ".join(f"{name} {value}" for name, value in named.items() if value != "*")


def parse_suppression(table: Mapping[str, Any]) -> Suppression:
    """Parses a suppression of the settings file.

    Args:
        table: the keys and values of the suppression's TOML table.

    Raises:
        InvalidSuppression: a key or value is invalid, the reason is missing, or the suppression would match everything.
    """
    for key, value in table.items():
        if key not in KEYS:
            raise InvalidSuppression(f"unknown key {key!r}; expected {', '.join(KEYS)}")
        if key != "expires" and not isinstance(value, str):
            raise InvalidSuppression(f"{key}: expected text, found {value!r}")
    patterns = {key: table[key] for key in ("rule", "path", "subject", "field") if table.get(key)}
    return Suppression(table.get("reason", ""), expires=_day(table.get("expires")), **patterns)


def _day(value: Any) -> datetime.date | None:
    if value is None or (isinstance(value, datetime.date) and not isinstance(value, datetime.datetime)):
        return value
    try:
        return datetime.date.fromisoformat(value)
    except (TypeError, ValueError):
        raise InvalidSuppression(f"expires: expected a date such as 2027-01-31, found {str(value)!r}") from None


def apply_suppressions(
    checked: Sequence[CheckedSchema],
    suppressions: Sequence[Suppression],
    today: datetime.date,
    origin: str,
    *,
    is_partial: bool = False,
) -> tuple[tuple[CheckedSchema, ...], tuple[str, ...]]:
    """Marks the problems that suppressions cover. Returns the results with these marks, and notes (sentences for the
    user) about expired and unused suppressions.

    Args:
        checked: the results of this run.
        today: the date on which it is decided whether a suppression has expired.
        origin: where the suppressions are defined, such as the settings file.
        is_partial: only some schemas were checked. Unused suppressions are then not reported, because they may be for
            other schemas.
    """
    used: set[int] = set()
    marked = tuple(_marked(item, suppressions, today, origin, used) for item in checked)
    notes = []
    for number, suppression in enumerate(suppressions):
        if not suppression.is_active(today):
            hidden = sum(suppression.covers(item, problem) for item in checked for problem in item.problems)
            if hidden:
                words = pluralize(hidden, "problem")
                notes.append(
                    f"the suppression of {suppression.describe()} ended on {suppression.expires}, so it no longer "
                    f"hides {words}"
                )
        elif number not in used and not is_partial:
            notes.append(f"the suppression of {suppression.describe()} matches no problem; remove it from {origin}")
    return marked, tuple(notes)


def _marked(
    checked: CheckedSchema, suppressions: Sequence[Suppression], today: datetime.date, origin: str, used: set[int]
) -> CheckedSchema:
    problems = []
    for problem in checked.problems:
        for number, suppression in enumerate(suppressions):
            if suppression.is_active(today) and suppression.covers(checked, problem):
                used.add(number)
                until = f" (until {suppression.expires})" if suppression.expires else ""
                problem = replace(problem, suppressed=SuppressedBy(f"{suppression.reason}{until}", origin))
                break
        problems.append(problem)
    return replace(checked, problems=tuple(problems))


def _field_path(problem: Problem) -> str:
    """Returns the path of the field that a problem affects: `header.region` if the problem has the phrase `field
    "header.region"`; "" for the whole schema."""
    return problem.field.removeprefix('field "').removesuffix('"') if problem.field.startswith("field ") else ""


def _matches(text: str, pattern: str) -> bool:
    # The brackets of array items would start a character set in a pattern.
    return text == pattern or pattern == "*" or fnmatch.fnmatchcase(text, pattern.replace("[]", "[[]]"))


def _matches_path(file: str, pattern: str) -> bool:
    """Whether the path of a file matches a pattern. A pattern that names a directory matches all files below it."""
    file, pattern = file.removeprefix("./"), pattern.removeprefix("./").rstrip("/")
    return _matches(file, pattern) or _matches(file, f"{pattern}/*") or file.startswith(f"{pattern}/")
