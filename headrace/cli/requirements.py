"""Reads the library requirements of the installed distribution, and checks installed versions against them.

The library that parses `Requires-Dist` lines, `packaging`, would be the only requirement of an install without extras,
which works with Python alone. The requirements of `setup.py` use a small part of the grammar (PEP 508): a name, version
bounds, and the extra. Other syntax is an error, and a test compares all of them with `packaging`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

_RULES: Mapping[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_BOUND = re.compile(r"(==|!=|>=|<=|>|<)\s*(\d+(?:\.\d+)*)")
_LINE = re.compile(r"([\w.-]+)(?:\[[^]]*\])?\s*([^;]*?)\s*(?:;\s*extra == ['\"]([\w-]+)['\"])?")


@dataclass(frozen=True, slots=True)
class Requirement:
    """A required library: its name, the `bounds` of its version, and the extra that requires it ("" if every
    installation does)."""

    name: str
    bounds: str
    extra: str = ""

    @classmethod
    def parse(cls, line: str) -> Requirement:
        """Parses a line `Requires-Dist` of a package's metadata.

        Raises:
            ValueError: the line has syntax that this parser does not support.
        """
        found = _LINE.fullmatch(line)
        if found is None:
            raise ValueError(
                f"cannot parse the requirement {line!r} of a distribution: expected `NAME BOUNDS` or "
                "`NAME BOUNDS; extra == 'EXTRA'`"
            )
        satisfies("0", found[2])
        return cls(found[1], found[2], found[3] or "")


def satisfies(version: str, bounds: str) -> bool:
    """Returns whether a version is within bounds such as `>=3.1,<4`. A pre-release counts as its release.

    Raises:
        ValueError: a bound has another form.
    """
    release = _release(version)
    for text in filter(None, map(str.strip, bounds.split(","))):
        bound = _BOUND.fullmatch(text)
        if bound is None:
            raise ValueError(f"the version bound {text!r} of a requirement is not of a form such as >=3.1")
        if not _RULES[bound[1]](release, _release(bound[2])):
            return False
    return True


def missing_by_extra(required: Iterable[Requirement], versions: Mapping[str, str]) -> dict[str, list[str]]:
    """Returns by extra the required libraries that are not installed: an empty list for an extra that is completely
    installed. pip does not record which extras were installed, so this is derived from the libraries.

    Args:
        required: the requirements of the distribution.
        versions: the installed versions, by library.
    """
    missing_by_name: dict[str, list[str]] = {}
    for requirement in required:
        missing = missing_by_name.setdefault(requirement.extra, [])
        if requirement.name not in versions and requirement.name not in missing:
            missing.append(requirement.name)
    return missing_by_name


def _release(version: str) -> tuple[int, ...]:
    """Returns the numbers of a version, without trailing zeros, so that 3.0 equals 3."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    numbers = [int(part) for part in found[0].split(".")] if found else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)
