"""Topics by a regular expression, as consumers of KIP-848 may subscribe: by RE2, whose syntax Kafka's own matcher has.

Python's expressions may take longer than anybody lives, and whoever waits for one is the whole broker. RE2's time grows
with the names times the pattern at most, and that product is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final, Protocol

import re2

from headrace.broker.errors import RequestRefused
from headrace.broker.protocol.error_codes import ErrorCode

STEPS_MAX: Final = 30_000_000
"""Characters of all names times states of a pattern: half a second at worst."""
MEMORY_MAX: Final = 1 << 20  # of a pattern and what matching it remembers, in bytes
PATTERNS_KEPT: Final = 64


class Pattern(Protocol):
    programsize: int

    def fullmatch(self, text: str) -> object | None: ...


def matching_topics(pattern: str, names: Iterable[str]) -> frozenset[str]:
    """Those of the names that the pattern matches, each as a whole, as in Kafka.

    Raises:
        RequestRefused: INVALID_REGULAR_EXPRESSION, since it cannot be read, or may take too long.
    """
    try:
        compiled = _compiled(pattern)
    except re2.error as error:
        raise _refused(pattern, b" ".join(error.args).decode(errors="replace")) from error
    asked = tuple(names)
    if sum(map(len, asked)) * compiled.programsize > STEPS_MAX:
        raise _refused(pattern, f"it may take too long for {len(asked)} topics")
    return frozenset(name for name in asked if compiled.fullmatch(name))


@lru_cache(maxsize=PATTERNS_KEPT)
def _compiled(pattern: str) -> Pattern:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MEMORY_MAX
    compiled: Pattern = re2.compile(pattern, options)
    return compiled


def _refused(pattern: str, why: str) -> RequestRefused:
    return RequestRefused(ErrorCode.INVALID_REGULAR_EXPRESSION, f"pattern {pattern!r}: {why}")
