"""Fetch sessions (KIP-227): what a consumer reads is remembered, so that it names, and is told, only what changes.

A consumer that begins with a full fetch of epoch 0 gets a session, and from then on sends what it wants otherwise than
before, under the session's next epoch. Its answers leave out partitions that have no records, no error and the same
bounds as before; with thousands of idle partitions that is nearly all. The reads themselves are checked as ever.

Sessions are bounded in number and in partitions of all of them. Without room one that was idle for EVICTABLE_S goes,
the longest first, else a smaller one that is as old; else there is no session, and full fetches go on. As at Kafka's
broker, a connection's end closes none: clients come back with theirs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from uuid import UUID

from headrace.broker.errors import RequestRefused
from headrace.broker.log.partition_log import PartitionLog
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.protocol.fetch import FetchedPartition, FetchedTopic, FetchPartition, FetchRequest, FetchTopic

SESSIONS_MAX = 1000
"""Kafka's `max.incremental.fetch.session.cache.slots`."""
PARTITIONS_MAX = 200_000
"""Of all sessions together, some hundred bytes each."""
EVICTABLE_S = 120.0
"""Kafka's `min.incremental.fetch.session.eviction.ms`."""
FIRST_EPOCH, LAST_EPOCH = 0, -1
"""Of full fetches: with the first a session begins, with the last there is to be none."""
EPOCH_MAX = ID_MAX = (1 << 31) - 1

TopicKey = tuple[str, UUID]
"""As the client names it: its name, or its id and ""."""
NameOf = Callable[[TopicKey], str]
"""The name that a topic has now."""
Logs = Mapping[tuple[str, int], PartitionLog]


@dataclass(slots=True)
class _Followed:
    """A partition of a session; `end` and `start` are the bounds its last answer had, -1 where it had an error.

    What is wanted of it may be something that was not looked at yet.
    """

    wanted: FetchPartition
    is_looked_at: bool = False
    end: int = -1
    start: int = -1


class FetchSession:
    """What one consumer reads, in the order in which it is read: what had records goes behind the others."""

    __slots__ = ("_followed", "began_s", "epoch", "is_by_id", "session_id", "used_s")

    def __init__(self, session_id: int, topics: Sequence[FetchTopic], *, is_by_id: bool, now_s: float) -> None:
        self.session_id, self.epoch, self.is_by_id = session_id, 1, is_by_id
        self.began_s = self.used_s = now_s
        self._followed: dict[tuple[TopicKey, int], _Followed] = {}
        self.change(topics, ())

    def __len__(self) -> int:
        return len(self._followed)

    def change(self, topics: Sequence[FetchTopic], forgotten: Sequence[FetchTopic]) -> None:
        """Takes what a request wants otherwise, or no more."""
        for topic in topics:
            key = (topic.name, topic.topic_id)
            for wanted in topic.partitions:
                known = self._followed.setdefault((key, wanted.partition), _Followed(wanted))
                known.wanted, known.is_looked_at = wanted, False
        for topic in forgotten:
            for gone in topic.partitions:
                self._followed.pop(((topic.name, topic.topic_id), gone.partition), None)

    def logs(self, logs: Logs, name_of: NameOf) -> list[PartitionLog]:
        """Those that are there of what is read."""
        return [log for _, _, log in self._each(logs, name_of) if log is not None]

    def _each(self, logs: Logs, name_of: NameOf) -> Iterator[tuple[TopicKey, _Followed, PartitionLog | None]]:
        # Partitions of a topic share its key, and mostly stand together: to hash an id takes longer than all else here.
        last, name = None, ""
        for (topic, index), followed in self._followed.items():
            if topic is not last:
                last, name = topic, name_of(topic)
            yield topic, followed, logs.get((name, index))

    def due(self, logs: Logs, name_of: NameOf) -> tuple[FetchTopic, ...]:
        """The partitions about which there may be something to tell."""
        found = []
        for topic, followed, log in self._each(logs, name_of):
            is_idle = (
                log is not None
                and followed.is_looked_at
                and followed.wanted.offset == log.high_watermark == followed.end
                and log.log_start_offset == followed.start
            )
            if not is_idle:
                found.append((topic, followed.wanted))
        return tuple(
            FetchTopic(name, topic_id, tuple(wanted for _, wanted in some))
            for (name, topic_id), some in groupby(found, key=lambda one: one[0])
        )

    def told(self, topics: Sequence[FetchedTopic], *, is_full: bool) -> tuple[FetchedTopic, ...]:
        """What of an answer goes to the client, which is taken note of."""
        kept = []
        for topic in topics:
            partitions = tuple(one for one in topic.partitions if self._note(topic, one) or is_full)
            if partitions:
                kept.append(FetchedTopic(topic.name, topic.topic_id, partitions))
        return tuple(kept)

    def _note(self, topic: FetchedTopic, answer: FetchedPartition) -> bool:
        key = ((topic.name, topic.topic_id), answer.partition)
        followed = self._followed.get(key)
        if followed is None:  # another request has let go of it meanwhile
            return True
        has_error = answer.error is not ErrorCode.NONE
        end, start = (-1, -1) if has_error else (answer.high_watermark, answer.log_start_offset)
        has_news = bool(answer.records) or has_error or (end, start) != (followed.end, followed.start)
        followed.end, followed.start, followed.is_looked_at = end, start, True
        if answer.records:
            self._followed[key] = self._followed.pop(key)
        return has_news


class FetchSessions:
    """Not for use by threads. Times are of a monotonic clock, in seconds."""

    def __init__(self, *, sessions_max: int = SESSIONS_MAX, partitions_max: int = PARTITIONS_MAX) -> None:
        self._sessions_max, self._partitions_max = sessions_max, partitions_max
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions(self) -> int:
        return sum(map(len, self._sessions.values()))

    def of(self, request: FetchRequest, *, is_by_id: bool, now_s: float) -> FetchSession | None:
        """The session of a request, changed as it says; a new one where it asks for it; None where there is none.

        Raises:
            RequestRefused: there is no such session, or the request is not its next one.
        """
        if request.session_epoch in (FIRST_EPOCH, LAST_EPOCH):
            self._sessions.pop(request.session_id, None)
            return self._begun(request, is_by_id, now_s) if request.session_epoch == FIRST_EPOCH else None
        session = self._sessions.get(request.session_id)
        if session is None:
            raise RequestRefused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"no fetch session {request.session_id}")
        if session.epoch != request.session_epoch:
            raise RequestRefused(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH, f"epoch {request.session_epoch} where {session.epoch} was due"
            )
        if session.is_by_id != is_by_id:
            raise RequestRefused(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, "the session names topics the other way")
        added = sum(len(topic.partitions) for topic in request.topics)
        if len(session) + added > self._partitions_max:
            del self._sessions[session.session_id]
            raise RequestRefused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "the session has too many partitions")
        session.change(request.topics, request.forgotten)
        session.epoch = session.epoch + 1 if session.epoch < EPOCH_MAX else 1
        session.used_s = now_s
        if not len(session):
            del self._sessions[session.session_id]
        return session

    def _begun(self, request: FetchRequest, is_by_id: bool, now_s: float) -> FetchSession | None:
        session = FetchSession(self._free_id(), request.topics, is_by_id=is_by_id, now_s=now_s)
        if not len(session) or not self._has_room(len(session), now_s):
            return None
        self._sessions[session.session_id] = session
        return session

    def _has_room(self, size: int, now_s: float) -> bool:
        while len(self._sessions) >= self._sessions_max or self.partitions + size > self._partitions_max:
            old = [one for one in self._sessions.values() if now_s - one.used_s > EVICTABLE_S]
            smaller = [one for one in self._sessions.values() if now_s - one.began_s > EVICTABLE_S and len(one) < size]
            if old:
                victim = min(old, key=lambda one: one.used_s)
            elif smaller and size <= self._partitions_max:
                victim = min(smaller, key=len)
            else:
                return False
            del self._sessions[victim.session_id]
        return True

    def _free_id(self) -> int:
        while True:
            # No secret: who reads what is checked at every fetch.
            session_id = random.randint(1, ID_MAX)  # noqa: S311
            if session_id not in self._sessions:
                return session_id
