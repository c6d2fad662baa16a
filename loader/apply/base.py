"""What a applier is: it makes one part of the world agree with what has been committed of a topic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from headrace.loader.commit.commit import Commit
from headrace.loader.commit.state import TopicState


@dataclass(frozen=True, slots=True)
class Step:
    """What a applier is asked to apply.

    `commits` are the next ones after the commit number `since` that speak of the topic, oldest first; where they are
    many, later steps have the rest. `state` is the topic as of the newest commit number of all, `commit_number`.
    `works` are the ids of committed work that may still have files in staging. `rewind` makes another applier, one
    whose cursor the engine keeps, begin again at the first commit of this topic, and is on disk when it returns, else
    raises `OSError`; `warn` takes a sentence for the report.
    """

    topic: str
    state: TopicState
    commits: Sequence[Commit]
    since: int
    commit_number: int
    works: frozenset[str]
    rewind: Callable[[str], None]
    warn: Callable[[str], None]


class Applier(Protocol):
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
    """A applier each of whose calls waits for somebody's disk, so that it is given the steps of many topics at once.

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
    """A commit number up to which commits are applied, and the checksum of the commit in it."""

    commit_number: int
    sha256: str


@runtime_checkable
class KeepsPositions(Protocol):
    """A applier that keeps how far it has got beside what it applies, and changes both at once.

    So what it applies to is never lost, or put back from a backup, without its positions: it says what it lacks.
    """

    def positions(self) -> Mapping[str, Position]:
        """By topic; one that is not named is at its very beginning. Raises whatever keeps them from being read."""
        ...

    def forget(self) -> None:
        """Puts every topic at its beginning. Raises likewise."""
        ...
