"""What an installation of Headrace asks of the libraries around it, and which of them keep to it.

No library that reads `Requires-Dist` is sure to be there; what `setup.py` writes is a small part of that grammar
(PEP 508): a name, bounds of releases, and the extra that wants it.
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
    """A library that `extra` brings ("": every installation), in a release within `bounds`."""

    name: str
    bounds: str
    extra: str = ""

    @classmethod
    def parse(cls, line: str) -> Requirement:
        """
        Raises:
            ValueError: the line has more than what is read here.
        """
        found = _LINE.fullmatch(line)
        if found is None:
            raise ValueError(f"{line!r} is not of the form NAME BOUNDS; extra == 'EXTRA'")
        satisfies("0", found[2])
        return cls(found[1], found[2], found[3] or "")


def satisfies(version: str, bounds: str) -> bool:
    """Whether a version is within bounds such as `>=3.1,<4`; of a pre-release, the release that it comes before is.

    Raises:
        ValueError: a bound is of another form.
    """
    release = _release(version)
    for text in filter(None, map(str.strip, bounds.split(","))):
        bound = _BOUND.fullmatch(text)
        if bound is None:
            raise ValueError(f"{text!r} is no bound such as >=3.1")
        if not _RULES[bound[1]](release, _release(bound[2])):
            return False
    return True


def missing_by_extra(required: Iterable[Requirement], versions: Mapping[str, str]) -> dict[str, list[str]]:
    """What each extra lacks, by its name: nothing of one that is installed.

    Args:
        versions: of the libraries that are there; pip does not note which extras were asked for.
    """
    lacking: dict[str, list[str]] = {}
    for each in required:
        missing = lacking.setdefault(each.extra, [])
        if each.name not in versions and each.name not in missing:
            missing.append(each.name)
    return lacking


def _release(version: str) -> tuple[int, ...]:
    """Without zeros at its end, so that 3.0 is 3."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    numbers = [int(part) for part in found[0].split(".")] if found else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)
