"""The interface of appliers. An applier maintains one result of loading (file index, table schemas, files, partitions,
audit counts or group offsets) as the commits of each topic describe it."""

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
    They are empty if a table is only compared. `state` is the topic as of the newest commit of the log,
    `commit_number`. `staged_runs` are the run ids of commits that may have unpublished files in staging. `rewind` makes
    the applier with the given name begin again at the topic's first commit; it raises `OSError` if that cannot be
    fsynced. `warn` adds a sentence to the report.
    """

    topic: str
    state: TopicState
    commits: Sequence[Commit]
    since: int
    commit_number: int
    staged_runs: frozenset[str]
    rewind: Callable[[str], None]
    warn: Callable[[str], None]


class Applier(Protocol):
    """An applier that is called for one topic at a time. Applying a `Step` (some commits of the topic) twice, or in two
    processes at once, has the same result as applying it once."""

    @property
    def name(self) -> str: ...

    @property
    def is_advisory(self) -> bool:
        """Whether a failure is only a warning, so that the later appliers continue."""
        ...

    def apply(self, step: Step) -> None:
        """Applies the commits in `step`, which are of one topic. An exception stops the topic; its message is shown to
        the user."""
        ...


@runtime_checkable
class PreparingApplier(Protocol):
    """An applier that can do a part of its work for many topics at once, in less time than topic by topic."""

    def prepare(self, steps: Sequence[Step]) -> None:
        """Does a part of the work of `Applier.apply` for these steps, which follow in this order, such as reading the
        state of their tables. After an exception, `apply` does it itself, so that the failure of one topic does not
        affect others."""
        ...


@runtime_checkable
class MultiTopicApplier(Protocol):
    """An applier that gets the commits of many topics, one `Step` per topic, in one call, because it
    sends requests to a server or opens a database.

    Applying the same steps twice has the same result as applying them once.
    """

    @property
    def name(self) -> str: ...

    @property
    def is_advisory(self) -> bool: ...

    def apply_topics(self, steps: Sequence[Step]) -> Mapping[str, str]:
        """Applies the commits of many topics, one `Step` per topic. Returns, by topic, the error messages of the topics
        that failed. An exception means that all of them failed; some may have been applied."""
        ...


class AppliedCommit(NamedTuple):
    """The newest commit that an applier has applied to a topic, and the commit's checksum."""

    commit_number: int
    sha256: str


@runtime_checkable
class PositionStore(Protocol):
    """An applier that stores its positions (for each topic, the newest commit that it has applied) in the same place as
    its results, and changes both in one transaction.

    If the results are lost or restored from a backup, so are the positions, and the missing commits are applied again.
    """

    def positions(self) -> Mapping[str, AppliedCommit]:
        """Returns, by topic, the newest commit that this applier has applied; a missing topic has no applied commit.
        Raises if the positions cannot be read."""
        ...

    def delete_positions(self) -> None:
        """Deletes the positions that this applier stores (for each topic, the newest commit that it has applied), so
        that it applies all commits of every topic again. Raises if that fails."""
        ...
