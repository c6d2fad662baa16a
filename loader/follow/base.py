"""What a follower is: it makes one part of the world agree with what has been decided of a topic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.loader.decide.decision import Decision
from headrace.loader.decide.state import TopicState


@dataclass(frozen=True, slots=True)
class Step:
    """What a follower is asked to apply.

    `decisions` are those of the slots after `since` that speak of the topic, oldest first; `state` is the topic as
    of the newest slot. `rewind` makes another follower begin again at the first decision of this topic, and is on
    disk when it returns.
    """

    topic: str
    state: TopicState
    decisions: Sequence[Decision]
    since: int
    rewind: Callable[[str], None]


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
