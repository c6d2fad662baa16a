"""Problems that somebody has decided to live with: for which rule, where, why, and until when.

A suppression needs a reason. After its day it no longer holds, and one that matches nothing is told, so that none
outlives what it was written for. Today's date is an argument.
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
    """`rule`, `path`, `subject` and `field` are patterns (`*`, `?`, `[a-z]`); `expires` is the last day it holds.

    What is written out in full matches itself, whatever it holds. `field` is matched against the field's dotted path,
    such as `header.region` or `items[].price`.
    """

    reason: str
    rule: str = "*"
    path: str = "*"
    subject: str = "*"
    field: str = "*"
    expires: datetime.date | None = None

    def __post_init__(self) -> None:
        if not self.reason.strip():
            raise InvalidSuppression("a suppression needs a reason")
        if (self.rule, self.path, self.subject, self.field) == ("*",) * 4:
            raise InvalidSuppression("a suppression of everything; name a rule, path, subject or field")

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
        """Which suppression it is, for messages."""
        named = {"rule": self.rule, "path": self.path, "subject": self.subject, "field": self.field}
        return ", ".join(f"{name} {value}" for name, value in named.items() if value != "*")


def parse_suppression(table: Mapping[str, Any]) -> Suppression:
    """A suppression as a settings file gives it.

    Raises:
        InvalidSuppression: says which key is wrong and what was expected.
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
        raise InvalidSuppression(f"expires: expected a day such as 2027-01-31, found {str(value)!r}") from None


def apply_suppressions(
    checked: Sequence[CheckedSchema],
    suppressions: Sequence[Suppression],
    today: datetime.date,
    origin: str,
    *,
    is_partial: bool = False,
) -> tuple[tuple[CheckedSchema, ...], tuple[str, ...]]:
    """The same answers with the suppressed problems marked, and what is to be told of the suppressions.

    Args:
        origin: where they are written down, such as the settings file.
        is_partial: only some schemas were checked, so that one that matches nothing may be about the others.
    """
    used: set[int] = set()
    marked = tuple(_marked(item, suppressions, today, origin, used) for item in checked)
    notes = []
    for number, suppression in enumerate(suppressions):
        if not suppression.is_active(today):
            hides = sum(suppression.covers(item, problem) for item in checked for problem in item.problems)
            if hides:
                words = pluralize(hides, "problem")
                notes.append(
                    f"the suppression of {suppression.describe()} ended on {suppression.expires}: {words} again"
                )
        elif number not in used and not is_partial:
            notes.append(f"the suppression of {suppression.describe()} matches nothing; remove it from {origin}")
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
    """`header.region` of `field "header.region"`; "" for the whole schema."""
    return problem.field.removeprefix('field "').removesuffix('"') if problem.field.startswith("field ") else ""


def _matches(text: str, pattern: str) -> bool:
    # The items of an array are written [], which in a pattern would begin a set of characters.
    return text == pattern or pattern == "*" or fnmatch.fnmatchcase(text, pattern.replace("[]", "[[]]"))


def _matches_path(file: str, pattern: str) -> bool:
    """A pattern of a path also means what lies below the directory it names."""
    file, pattern = file.removeprefix("./"), pattern.removeprefix("./").rstrip("/")
    return _matches(file, pattern) or _matches(file, f"{pattern}/*") or file.startswith(f"{pattern}/")
