"""Matches topics against the regular expression of a consumer's subscription (KIP-848), with RE2, like
Kafka.

Python's `re` may take exponential time, and it would block the whole broker. RE2 takes at most time proportional to the
length of the names times the size of the pattern, and that product is limited.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final, Protocol

import re2

from headrace.broker.errors import RequestRefused
from headrace.broker.protocol.error_codes import ErrorCode

STEPS_MAX: Final = 30_000_000
"""Limit of (characters of all names) x (states of the pattern); half a second in the worst case."""
MEMORY_MAX: Final = 1 << 20  # bytes for a compiled pattern and its match cache
CACHED_PATTERNS_MAX: Final = 64


class CompiledPattern(Protocol):
    programsize: int

    def fullmatch(self, text: str) -> object | None: ...


def matching_topics(pattern: str, names: Iterable[str]) -> frozenset[str]:
    """Returns the names that the pattern matches in full, as in Kafka.

    Raises:
        RequestRefused: INVALID_REGULAR_EXPRESSION; the pattern is malformed or too expensive.
    """
    try:
        compiled = _compiled(pattern)
    except re2.error as error:
        raise _refused(pattern, b" ".join(error.args).decode(errors="replace")) from error
    candidates = tuple(names)
    if sum(map(len, candidates)) * compiled.programsize > STEPS_MAX:
        raise _refused(
            pattern,
            f"matching the pattern with {len(candidates)} topic names may take too long; use a shorter pattern, or "
            "name the topics",
        )
    return frozenset(name for name in candidates if compiled.fullmatch(name))


@lru_cache(maxsize=CACHED_PATTERNS_MAX)
def _compiled(pattern: str) -> CompiledPattern:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MEMORY_MAX
    compiled: CompiledPattern = re2.compile(pattern, options)
    return compiled


def _refused(pattern: str, reason: str) -> RequestRefused:
    return RequestRefused(ErrorCode.INVALID_REGULAR_EXPRESSION, f"pattern {pattern!r}: {reason}")
