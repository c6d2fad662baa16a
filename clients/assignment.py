"""Which partitions a consumer reads, and what happens when its group shares them out anew.

Everything here is called while the Kafka client is asked for messages, in the thread of the consumer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import TopicPartition

from headrace.clients.arrived import Arrived
from headrace.clients.errors import SourceUnavailable
from headrace.clients.fetched import Fetched
from headrace.clients.group_commits import COMMIT_TIMEOUT_S, GroupCommits
from headrace.clients.partitions import Place, at_commit_or_else, partitions_of, places_of

logger = logging.getLogger(__name__)

Start = Callable[[Any, frozenset[Place]], list[TopicPartition]]
"""Says, of partitions without a commit, where to begin."""


class Assignment:
    """What a group gave to one member; without a group, what its consumer gave itself.

    Args:
        is_cooperative: whether members keep their partitions while the group shares out anew.
        commits_before: whether what was finished of partitions is committed before they are given back.
        start: where to begin without a commit; None is what the Kafka client does by itself.
        commits_start: whether that is committed at once.
        on_assign, on_revoke: see `Consumer`.
    """

    def __init__(
        self,
        commits: GroupCommits,
        fetched: Fetched,
        arrived: Arrived,
        *,
        is_cooperative: bool,
        commits_before: bool,
        start: Start | None,
        commits_start: bool,
        on_assign: Callable[[frozenset[Place]], None] | None,
        on_revoke: Callable[[frozenset[Place]], None] | None,
    ) -> None:
        self._commits = commits
        self._fetched = fetched
        self._arrived = arrived
        self._is_cooperative = is_cooperative
        self._commits_before = commits_before
        self._start = start
        self._commits_start = commits_start
        self._found_starts: list[TopicPartition] = []
        self._on_assign = on_assign
        self._on_revoke = on_revoke
        # The Kafka client is not asked: its answer may take a while, and it keeps the interpreter lock until then.
        self.own: frozenset[Place] = frozenset()
        self._not_begun: frozenset[Place] = frozenset()
        self.paused: frozenset[Place] = frozenset()
        """Those that were paused when all were given back to be shared out anew: they still are where they come back at
        once, and so were this member's all the time."""
        self.is_being_told = False
        """Whether the Kafka client calls this now."""

    def close(self) -> None:
        """What was finished is committed already, or is not to be."""
        self._commits_before = False

    def leave(self) -> None:
        """The application is told nothing any more."""
        self._on_assign = self._on_revoke = None

    def assigned(self, kafka: Any, partitions: list[TopicPartition]) -> None:
        """The group gave these partitions to this member."""
        self._not_begun |= places_of(partitions)
        with self._told():
            try:
                self.begin(kafka)
            finally:
                if self._not_begun:
                    self._assign(kafka, [])  # or confluent-kafka would begin by itself, and elsewhere

    def begin(self, kafka: Any) -> None:
        """Begins with the partitions that were assigned, if that is still to be done.

        Raises:
            SourceUnavailable: the brokers do not say where, and are to be asked again.
        """
        places = self._not_begun
        if not places:
            return
        partitions = partitions_of(places)
        self._arrived.forget(places)
        if self._start is not None:
            partitions = at_commit_or_else(kafka, partitions, self._found)
            self._arrived.begin(partitions)
        self._assign(kafka, partitions)
        self._not_begun = frozenset()
        self.own = self.own | places if self._is_cooperative else places
        self._fetched.give_back(places)
        self._fetched.pause(self.paused & places)
        # A partition that was paused when it was given back still is, for the Kafka client.
        kafka.resume(partitions_of(places - self.paused))
        kafka.pause(partitions_of(places & self.paused))
        self.paused = frozenset()
        self._commit_starts(kafka)
        if self._on_assign is not None:
            self._on_assign(places)

    def _found(self, kafka: Any, places: frozenset[Place]) -> list[TopicPartition]:
        assert self._start is not None
        self._found_starts = self._start(kafka, places)
        return self._found_starts

    def _commit_starts(self, kafka: Any) -> None:
        """So that whoever gets the partitions next goes on there, and does not begin at a later end."""
        starts, self._found_starts = self._found_starts, []
        if not (self._commits_start and starts):
            return
        for each in starts:
            self._commits.go_on_at((each.topic, each.partition), each.offset)
        try:
            self._commits.commit(kafka, places_of(starts), None if self.is_being_told else COMMIT_TIMEOUT_S)
        except SourceUnavailable as error:
            logger.warning("starts not committed, tried again with what is read error=%s", error)

    def revoked(self, kafka: Any, partitions: list[TopicPartition]) -> None:
        """The group takes these partitions back."""
        places = places_of(partitions)
        if self._commits_before:
            try:
                self._commits.commit(kafka, places, None)
            except SourceUnavailable as error:
                logger.warning("partitions given back uncommitted, their last messages come again error=%s", error)
        try:
            if self._on_revoke is not None:
                with self._told():
                    self._on_revoke(places - self._not_begun)  # while they are still ours, so that it may commit
        finally:
            if not self._is_cooperative:
                self.paused = self._fetched.paused() & places
            self._give_up(kafka, places)

    def lost(self, kafka: Any, partitions: list[TopicPartition]) -> None:
        """Others read them already: a commit would take them back."""
        places = self._give_up(kafka, places_of(partitions))
        if self._on_revoke is not None:
            with self._told():
                self._on_revoke(places)

    @contextmanager
    def _told(self) -> Iterator[None]:
        self.is_being_told = True
        try:
            yield
        finally:
            self.is_being_told = False

    def _assign(self, kafka: Any, partitions: list[TopicPartition]) -> None:
        if self._is_cooperative:
            kafka.incremental_assign(partitions)
        else:
            kafka.assign(partitions)

    def _give_up(self, kafka: Any, places: frozenset[Place]) -> frozenset[Place]:
        """Returns those of them that had been begun."""
        if places & self._not_begun and self._is_cooperative:
            kafka.incremental_unassign(partitions_of(places - self._not_begun))  # it refuses those it does not have
        begun, self._not_begun = places - self._not_begun, self._not_begun - places
        self.own -= begun
        self._fetched.give_back(begun)
        self._arrived.forget(begun)
        self._commits.forget(begun)
        return begun
