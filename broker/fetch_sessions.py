"""Fetch sessions (KIP-227): the broker remembers the partitions that a consumer fetches, so that later requests and
responses contain only changes.

A consumer starts a session with a fetch of epoch 0, which names all its partitions. Each further request has the
session's next epoch and names only partitions that are added, removed or read from another offset. Responses to these
omit partitions without records, errors or changed offsets; with thousands of idle partitions that is nearly all of
them. Permissions are checked whenever a partition is read, but not for partitions that are omitted because nothing has
changed.

The number of sessions and their total number of partitions are bounded. At the limit, old sessions are evicted until
the new one fits: first the least recently used session, if it is idle for more than EVICTION_AGE_S; else the smallest
session that was started more than EVICTION_AGE_S ago and has fewer partitions than the new one. If no session may be
evicted, none is created, and the client continues with full fetches. As in Kafka's broker, closing a connection does
not end its session: clients reconnect and continue it.
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
"""Maximum number of sessions: Kafka's `max.incremental.fetch.session.cache.slots`."""
PARTITIONS_MAX = 200_000
"""Maximum number of partitions of all sessions together; each takes a few hundred bytes."""
EVICTION_AGE_S = 120.0
"""A session may be evicted if it is idle, or exists, for longer than this: Kafka's
`min.incremental.fetch.session.eviction.ms`."""
INITIAL_EPOCH, FINAL_EPOCH = 0, -1
"""Epochs of full fetches. 0 starts a session; -1 ends the client's session, or fetches without one."""
EPOCH_MAX = ID_MAX = (1 << 31) - 1

TopicKey = tuple[str, UUID]
"""A topic as the client names it: (name, nil UUID), or ("", topic id)."""
TopicNameLookup = Callable[[TopicKey], str]
"""Function that returns the current name of a topic, "" if its id is unknown."""
Logs = Mapping[tuple[str, int], PartitionLog]


@dataclass(slots=True)
class _SessionPartition:
    """One partition of a fetch session, as the client requested it last.

    `end` and `start` are the high watermark and log start offset when the partition was last read; -1 if there was an
    error, and before the first read. `is_reported` becomes False when a request names the partition, and True when a
    response has covered it.
    """

    requested: FetchPartition
    is_reported: bool = False
    end: int = -1
    start: int = -1


class FetchSession:
    """The partitions of one consumer's fetches, in the order of reading: a partition that returned records moves to the
    end.

    Args:
        topics: the topics and partitions in the request that starts the session.
        is_by_id: whether the client's requests name topics by id.
        now_s: start time of the session, by a monotonic clock.
    """

    __slots__ = ("_partitions", "created_s", "epoch", "is_by_id", "last_used_s", "session_id")

    def __init__(self, session_id: int, topics: Sequence[FetchTopic], *, is_by_id: bool, now_s: float) -> None:
        self.session_id, self.epoch, self.is_by_id = session_id, 1, is_by_id
        self.created_s = self.last_used_s = now_s
        self._partitions: dict[tuple[TopicKey, int], _SessionPartition] = {}
        self.update(topics, ())

    def __len__(self) -> int:
        return len(self._partitions)

    def update(self, topics: Sequence[FetchTopic], forgotten: Sequence[FetchTopic]) -> None:
        """Applies the changes in a Fetch request to the session: adds or updates the partitions in `topics`, removes
        those in `forgotten`."""
        for topic in topics:
            key = (topic.name, topic.topic_id)
            for requested in topic.partitions:
                partition = self._partitions.setdefault((key, requested.partition), _SessionPartition(requested))
                partition.requested, partition.is_reported = requested, False
        for topic in forgotten:
            for removed in topic.partitions:
                self._partitions.pop(((topic.name, topic.topic_id), removed.partition), None)

    def logs(self, logs: Logs, topic_name: TopicNameLookup) -> list[PartitionLog]:
        """Returns the logs of the session's partitions; partitions that do not exist are omitted.

        Args:
            logs: all logs of the broker.
            topic_name: returns the current name of a topic that the session stores by name or id.
        """
        return [log for _, _, log in self._iter_partitions(logs, topic_name) if log is not None]

    def _iter_partitions(
        self, logs: Logs, topic_name: TopicNameLookup
    ) -> Iterator[tuple[TopicKey, _SessionPartition, PartitionLog | None]]:
        # Partitions of a topic share one key object and are mostly adjacent. Hashing a UUID is the slowest step here,
        # so the name is looked up only when the topic changes.
        last, name = None, ""
        for (topic, index), partition in self._partitions.items():
            if topic is not last:
                last, name = topic, topic_name(topic)
            yield topic, partition, logs.get((name, index))

    def topics_to_read(self, logs: Logs, topic_name: TopicNameLookup) -> tuple[FetchTopic, ...]:
        """Returns the partitions that may have new records, an error or changed offsets since the last response.

        Args:
            logs: all logs of the broker.
            topic_name: returns the current name of a topic that the session stores by name or id.
        """
        found = []
        for topic, partition, log in self._iter_partitions(logs, topic_name):
            is_unchanged = (
                log is not None
                and partition.is_reported
                and partition.requested.offset == log.high_watermark == partition.end
                and log.log_start_offset == partition.start
            )
            if not is_unchanged:
                found.append((topic, partition.requested))
        return tuple(
            FetchTopic(name, topic_id, tuple(requested for _, requested in group))
            for (name, topic_id), group in groupby(found, key=lambda item: item[0])
        )

    def filter_response(self, topics: Sequence[FetchedTopic], *, is_full: bool) -> tuple[FetchedTopic, ...]:
        """Returns the partitions in `topics`, the results of a fetch, that have records, an error or other offsets than
        at the session's last response, and records all of them as reported.

        Args:
            is_full: include the other partitions too.
        """
        reported = []
        for topic in topics:
            partitions = tuple(result for result in topic.partitions if self._update_reported(topic, result) or is_full)
            if partitions:
                reported.append(FetchedTopic(topic.name, topic.topic_id, partitions))
        return tuple(reported)

    def _update_reported(self, topic: FetchedTopic, result: FetchedPartition) -> bool:
        key = ((topic.name, topic.topic_id), result.partition)
        partition = self._partitions.get(key)
        if partition is None:  # removed by a concurrent request
            return True
        has_error = result.error is not ErrorCode.NONE
        end, start = (-1, -1) if has_error else (result.high_watermark, result.log_start_offset)
        is_changed = bool(result.records) or has_error or (end, start) != (partition.end, partition.start)
        partition.end, partition.start, partition.is_reported = end, start, True
        if result.records:
            self._partitions[key] = self._partitions.pop(key)
        return is_changed


class FetchSessions:
    """All fetch sessions of the broker: at most `sessions_max`, with at most `partitions_max` partitions in total. Not
    thread-safe. Times are seconds of a monotonic clock."""

    def __init__(self, *, sessions_max: int = SESSIONS_MAX, partitions_max: int = PARTITIONS_MAX) -> None:
        self._sessions_max, self._partitions_max = sessions_max, partitions_max
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions(self) -> int:
        return sum(map(len, self._sessions.values()))

    def resolve(self, request: FetchRequest, *, is_by_id: bool, now_s: float) -> FetchSession | None:
        """Returns the session to which a request belongs, with the request's changes applied. A request of epoch 0
        starts a session. Returns None if the request is outside of a session: its epoch is -1, it names no partitions
        to start a session with, or the limits allow no new session. A session that the request leaves without
        partitions ends with this request.

        Args:
            is_by_id: whether the request names topics by id. All requests of a session must name topics in the same
                way, by id or by name.
            now_s: time of this use, by a monotonic clock; old or unused sessions may be evicted for new ones.

        Raises:
            RequestRefused: the session does not exist, would have too many partitions, expects another epoch, or was
                started with topic names if the request has topic ids (or the reverse).
        """
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._sessions.pop(request.session_id, None)
            return self._start_session(request, is_by_id, now_s) if request.session_epoch == INITIAL_EPOCH else None
        session = self._sessions.get(request.session_id)
        if session is None:
            raise RequestRefused(
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
                f"fetch session {request.session_id} does not exist; start a new session",
            )
        if session.epoch != request.session_epoch:
            raise RequestRefused(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                f"the request has fetch session epoch {request.session_epoch}, expected {session.epoch}; start a new "
                "session",
            )
        if session.is_by_id != is_by_id:
            raise RequestRefused(
                ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
                "a fetch session cannot mix topic names and topic ids; start a new session",
            )
        size = len(session)
        session.update(request.topics, request.forgotten)
        if len(session) > size and (total := self.partitions) > self._partitions_max:
            del self._sessions[session.session_id]
            raise RequestRefused(
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
                f"the fetch sessions would have {total} partitions in total; the limit is {self._partitions_max}",
            )
        session.epoch = session.epoch + 1 if session.epoch < EPOCH_MAX else 1
        session.last_used_s = now_s
        if not len(session):
            del self._sessions[session.session_id]
        return session

    def _start_session(self, request: FetchRequest, is_by_id: bool, now_s: float) -> FetchSession | None:
        session = FetchSession(self._unused_id(), request.topics, is_by_id=is_by_id, now_s=now_s)
        if not len(session) or not self._evict_for(len(session), now_s):
            return None
        self._sessions[session.session_id] = session
        return session

    def _evict_for(self, size: int, now_s: float) -> bool:
        while len(self._sessions) >= self._sessions_max or self.partitions + size > self._partitions_max:
            idle_sessions = [
                session for session in self._sessions.values() if now_s - session.last_used_s > EVICTION_AGE_S
            ]
            smaller_sessions = [
                session
                for session in self._sessions.values()
                if now_s - session.created_s > EVICTION_AGE_S and len(session) < size
            ]
            if idle_sessions:
                victim = min(idle_sessions, key=lambda session: session.last_used_s)
            elif smaller_sessions and size <= self._partitions_max:
                victim = min(smaller_sessions, key=len)
            else:
                return False
            del self._sessions[victim.session_id]
        return True

    def _unused_id(self) -> int:
        while True:
            # The id need not be secret: permissions are checked at every fetch.
            session_id = random.randint(1, ID_MAX)  # noqa: S311
            if session_id not in self._sessions:
                return session_id
