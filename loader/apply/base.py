"""The interface of appliers: each keeps one part of the world in the state that the commits of a topic describe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from headrace.loader.commit.commit import Commit
from headrace.loader.commit.state import TopicState


@dataclass(frozen=True, slots=True)
class Step:
    """The commits of one topic that an applier applies in one call.

    `commits` are the topic's next commits after `since`, oldest first; if there are many, later steps have the rest.
    `state` is the topic as of the newest commit of the log, `commit_number`. `works` are ids of committed runs that may
    still have files in staging. `rewind` resets another applier, whose cursor the engine stores, to the topic's first
    commit; it is fsynced on return, and raises `OSError` otherwise. `warn` adds a sentence to the report.
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
    """Applying a step twice, or in two processes at once, has the same result as applying it once."""

    @property
    def name(self) -> str: ...

    @property
    def is_advisory(self) -> bool:
        """Whether a failure is only a warning and holds nothing back."""
        ...

    def apply(self, step: Step) -> None:
        """Applies a step. An exception stops the topic; its message is shown to the user."""
        ...


@runtime_checkable
class AppliesTogether(Protocol):
    """An applier whose calls are round trips, so that it gets the steps of many topics at once.

    Applying them twice has the same result as applying them once.
    """

    @property
    def name(self) -> str: ...

    @property
    def is_advisory(self) -> bool: ...

    def apply_together(self, steps: Sequence[Step]) -> Mapping[str, str]:
        """Returns, by topic, the problem that stops it. An exception stops all of them."""
        ...


class Position(NamedTuple):
    """The newest applied commit and its checksum."""

    commit_number: int
    sha256: str


@runtime_checkable
class KeepsPositions(Protocol):
    """An applier that stores its positions in the same place as its results and changes both in one transaction.

    If those results are lost or restored from a backup, the positions are too, so the applier knows which commits it
    lacks.
    """

    def positions(self) -> Mapping[str, Position]:
        """Returns the positions by topic; a topic that is not listed is at its beginning. Raises if they cannot be
        read."""
        ...

    def forget(self) -> None:
        """Resets all topics to their beginning. Raises if that fails."""
        ...
