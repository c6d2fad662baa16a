"""What a follower is: it makes one part of the world agree with what has been decided of a topic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from headrace.loader.commit.decision import Decision
from headrace.loader.commit.state import TopicState


@dataclass(frozen=True, slots=True)
class Step:
    """What a follower is asked to apply.

    `decisions` are the next ones after the slot `since` that speak of the topic, oldest first; where they are many,
    later steps have the rest. `state` is the topic as of the newest slot of all, `slot`. `works` are the ids of decided
    work that may still have files in staging. `rewind` makes another follower, one whose cursor the engine keeps, begin
    again at the first decision of this topic, and is on disk when it returns, else raises `OSError`; `warn` takes a
    sentence for the report.
    """

    topic: str
    state: TopicState
    decisions: Sequence[Decision]
    since: int
    slot: int
    works: frozenset[str]
    rewind: Callable[[str], None]
    warn: Callable[[str], None]


class Follower(Protocol):
    """Applying a step again, or in two processes at once, changes nothing more."""

    @property
    def name(self) -> str: ...

    @property
    def is_advisory(self) -> bool:
        """Whether a failure is only a warning, because nothing is held back by it."""
        ...

    def apply(self, step: Step) -> None:
        """Raises whatever keeps the topic from going on; its message is for people."""
        ...


@runtime_checkable
class AppliesTogether(Protocol):
    """A follower each of whose calls waits for somebody's disk, so that it is given the steps of many topics at once.

    Applying them again changes nothing more.
    """

    @property
    def name(self) -> str: ...

    @property
    def is_advisory(self) -> bool: ...

    def apply_together(self, steps: Sequence[Step]) -> Mapping[str, str]:
        """Returns by topic what keeps it from going on, for people; raises whatever keeps all of them from it."""
        ...


class Position(NamedTuple):
    """A slot up to which decisions are applied, and the checksum of the decision in it."""

    slot: int
    sha256: str


@runtime_checkable
class KeepsPositions(Protocol):
    """A follower that keeps how far it has got beside what it applies, and changes both at once.

    So what it applies to is never lost, or put back from a backup, without its positions: it says what it lacks.
    """

    def positions(self) -> Mapping[str, Position]:
        """By topic; one that is not named is at its very beginning. Raises whatever keeps them from being read."""
        ...

    def forget(self) -> None:
        """Puts every topic at its beginning. Raises likewise."""
        ...
