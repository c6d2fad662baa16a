"""The verdicts of a topic over time as one line: its rail.

A rail is drawn from a strip, one byte for each window of ten minutes. Where every message arrived, the rail is a thin
line. Missing messages hang below it, extra messages stand on it, and a mismatch does both: the shape has the meaning of
the colour, for prints and colour-blind readers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.audit.strip import NO_MESSAGES, STATE_BYTES, STATE_VERDICTS, WINDOWS_OF_DAY
from headrace.audit.verdict import AuditVerdict

HEIGHT: Final = 16
RUNS_MAX: Final = 800
"""Runs of a rail that are drawn as they are. A rail with more is drawn by the hour, each hour as its worst window; one
with more hours, by the day."""
WINDOWS_OF_HOUR: Final = 6
EMPTY: Final = "empty"
COMPLETE: Final = STATE_BYTES[AuditVerdict.COMPLETE]


@dataclass(frozen=True, slots=True)
class Look:
    """How a state is drawn: from `top` down by `depth` in a rail of `HEIGHT`. `meaning` explains it in the legend."""

    name: str
    top: float
    depth: float
    meaning: str


LOOKS: Final[Mapping[int, Look]] = {
    NO_MESSAGES: Look(EMPTY, 0, HEIGHT, "no messages"),
    **{
        STATE_BYTES[verdict]: Look(verdict.value, top, depth, meaning)
        for verdict, top, depth, meaning in (
            (AuditVerdict.COMPLETE, 7, 2, "all tiers counted the same messages"),
            (AuditVerdict.SKIPPED, 7, 4, "missing, and explained by skipped offsets"),
            (AuditVerdict.UNTRACKED, 7.5, 1, "a producer does not count"),
            (AuditVerdict.EXPIRED, 6, 4, "an old finding without new counts"),
            (AuditVerdict.ACCEPTED, 6, 4, "a finding that was accepted with a reason"),
            (AuditVerdict.PENDING, 6.5, 3, "too early to tell"),
            (AuditVerdict.UNKNOWN, 4, 8, "a tier has no counts"),
            (AuditVerdict.EXTRA, 0, 9, "more messages than sent"),
            (AuditVerdict.MISSING, 7, 9, "messages are missing"),
            (AuditVerdict.MISMATCH, 0, HEIGHT, "other messages than sent, or missing and extra ones"),
        )
    },
}
"""By the byte of a strip."""
LOOK_OF: Final[Mapping[str, Look]] = {look.name: look for look in LOOKS.values()}
LEGEND: Final = tuple(LOOK_OF[verdict.value] for verdict in reversed(tuple(STATE_VERDICTS.values())))
"""The states of the legend, the worst first."""

_RUN: Final = re.compile(rb"([^\x01])\1*", re.DOTALL)
_DOWN: Final = frozenset({STATE_BYTES[AuditVerdict.MISSING], STATE_BYTES[AuditVerdict.MISMATCH]})
_UP: Final = frozenset({STATE_BYTES[AuditVerdict.EXTRA], STATE_BYTES[AuditVerdict.MISMATCH]})
_SILENT: Final = frozenset({STATE_BYTES[AuditVerdict.UNKNOWN]})
WORRYING: Final = STATE_BYTES[AuditVerdict.UNKNOWN]
"""The least byte of a state that needs attention."""


def runs(states: bytes) -> Iterator[tuple[int, int, int]]:
    """Returns (state, start, end) of the runs of equal states that are not complete. The search runs in C, so that a
    month of 300 topics takes milliseconds."""
    for match in _RUN.finditer(states):
        yield match[0][0], match.start(), match.end()


def thinned(states: bytes, windows: int = WINDOWS_OF_HOUR) -> bytes:
    """Returns states of the same length, in which each hour, or other number of windows, has its worst state. The bytes
    ascend with severity."""
    parts = (states[at : at + windows] for at in range(0, len(states), windows))
    return b"".join(bytes([max(part)]) * len(part) for part in parts)


def rail_paths(states: bytes) -> list[tuple[str, str]]:
    """Returns (state, path data) of a rail that is `len(states)` wide, the worst state last, so that it lies on top."""
    found = list(runs(states))
    for windows in (WINDOWS_OF_HOUR, WINDOWS_OF_DAY):
        if len(found) > RUNS_MAX:
            found = list(runs(thinned(states, windows)))
    data: dict[int, list[str]] = {}
    for state, start, end in found:
        look = LOOKS[state]
        width = end - start
        data.setdefault(state, []).append(f"M{start} {look.top:g}h{width}v{look.depth:g}h-{width}z")
    return [((LOOKS[state]).name, "".join(parts)) for state, parts in sorted(data.items())]


def worst_state(states: bytes) -> int:
    """Returns the worst worrying state in a strip, 0 without one."""
    return next((state for state in sorted(STATE_VERDICTS, reverse=True) if state >= WORRYING and state in states), 0)


def rail_text(states: bytes) -> str:
    """Returns a rail as text for screen readers: the number of windows in each worrying state."""
    counts = {state: states.count(state) for state in sorted(STATE_VERDICTS, reverse=True) if state >= WORRYING}
    named = [f"{count} {LOOKS[state].name}" for state, count in counts.items() if count]
    return ", ".join(named) if named else "no finding"


@dataclass(frozen=True, slots=True)
class Crowd:
    """A column of the rail of all topics: the numbers of topics with missing, extra and unknown windows at a time."""

    column: int
    missing: int
    extra: int
    unknown: int


def crowd(strips: Sequence[bytes], columns: int) -> list[Crowd]:
    """Returns the columns with findings in a rail of all topics that is `columns` wide. The strips have one length."""
    length = len(strips[0]) if strips else 0
    counts = [[0, 0, 0] for _ in range(columns)]
    for states in strips:
        seen: set[tuple[int, int]] = set()
        for state, start, end in runs(states):
            kinds = [kind for kind, of in enumerate((_DOWN, _UP, _SILENT)) if state in of]
            if kinds:
                covered = range(start * columns // length, (end - 1) * columns // length + 1)
                seen.update((column, kind) for column in covered for kind in kinds)
        for column, kind in seen:
            counts[column][kind] += 1
    return [Crowd(column, *three) for column, three in enumerate(counts) if any(three)]


def crowd_height(topics: int, of: int) -> float:
    """Returns the height of a column for `topics` of `of` topics, out of 12: one topic is visible, all fill it."""
    return 0.0 if not topics else round(min(11.0, 3 + 8 * (topics / max(1, of)) ** 0.5), 1)
