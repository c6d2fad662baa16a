"""The requests to a lane, and their results. Another thread waits for a result; `resolve` and `fail` set it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from headrace.gateway.sessions.chunk_body import ChunkBody
from headrace.gateway.sessions.sources import SourceKey

Encode = Callable[[Any], bytes | None]
"""Function that returns the value of a record. Raises `Unencodable`."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SessionId:
    """The id of a session: its source, and its number among the sessions of the source."""

    key: SourceKey
    number: int

    def __str__(self) -> str:
        return f"{self.key.hex()}-{self.number}"

    @classmethod
    def parse(cls, text: str) -> SessionId:
        """Raises:
        ValueError: the text is no id of a session.
        """
        key, _, number = text.partition("-")
        if len(key) != 32 or not number.isdecimal() or len(number) > 19:
            raise ValueError(f"{text!r:.60} is not the id of a session")
        return cls(SourceKey(bytes.fromhex(key)), int(number))


@dataclass(frozen=True, slots=True)
class Opening:
    """A request to open a session.

    Attributes:
        partition_count: partitions of the topic, for a source that has none yet.
        encoder: returns the encoder of the records that arrive at a time in microseconds since 1970.
        accepts_values: whether it takes values that were parsed from JSON, besides bytes.
        has_arrival_times: whether the encoder is a `LineEncoder`; the message time of each record is that of its chunk.
        record_bytes_max: largest record that the topic accepts.
        headers: headers of each record besides those of source and sequence number.
        previous: number of the newest session that the client knows; None if it opens one regardless of others.
    """

    topic: str
    source_id: str
    host: str
    partition_count: int
    encoder: Callable[[int], Encode]
    accepts_values: bool
    has_arrival_times: bool
    record_bytes_max: int
    headers: tuple[tuple[str, bytes], ...]
    opened_ms: int
    previous: int | None = None
    result: Future[Opened] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class Opened:
    session: SessionId
    partition: int
    last_seqno: int


@dataclass(slots=True)
class Chunk:
    """A request to store a chunk. `error` is set when a part of it was not stored.

    Attributes:
        authorize: raises `GatewayError` if the client may not write to a topic; called with the topic of the session.
    """

    session: SessionId
    authorize: Callable[[str], None]
    body: ChunkBody
    received_us: int
    result: Future[ChunkResult] = field(default_factory=Future)
    outcome: ChunkResult = field(init=False)
    error: Exception | None = None

    def __post_init__(self) -> None:
        self.outcome = ChunkResult()


@dataclass(slots=True)
class ChunkResult:
    """Attributes:
    last_seqno: all records up to it are stored or rejected.
    rejected: the number and the reason of each record that cannot be stored.
    conflict: whether the last stored record has the number of another record that was skipped.
    """

    last_seqno: int = 0
    written: int = 0
    skipped: int = 0
    rejected: list[tuple[int, str]] = field(default_factory=list)
    conflict: bool = False


@dataclass(frozen=True, slots=True)
class Closing:
    """A request to close a session. `authorize` is that of `Chunk`."""

    session: SessionId
    authorize: Callable[[str], None]
    result: Future[None] = field(default_factory=Future)


Request = Opening | Chunk | Closing


def resolve(future: Future[T], result: T) -> None:
    if future.set_running_or_notify_cancel():
        future.set_result(result)


def fail(future: Future[Any], error: Exception) -> None:
    """Fails a request, unless it has its result."""
    if not future.done() and future.set_running_or_notify_cancel():
        future.set_exception(error)
