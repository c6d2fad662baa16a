"""State of one transactional id: the producer that may use it, and its current transaction. Pure functions over values.

Only the producer that was the last to get a producer id and epoch for the transactional id may use it; earlier ones are
fenced, since their epoch is lower or their producer id is another one (KIP-98). A transaction starts with its first
partition. Its end, commit or abort, is decided when the status `Prepare…` is stored. The broker then writes the
transaction's markers, again after a crash, and stores the status `Complete…` once all are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple

from headrace.broker.coordinator.offsets import TopicPartition
from headrace.broker.errors import RequestRefused
from headrace.broker.protocol.error_codes import ErrorCode

TIMEOUT_MS_MAX: Final = 900_000
"""Maximum transaction timeout: Kafka's `transaction.max.timeout.ms`."""
ID_EXPIRATION_MS: Final = 7 * 86_400_000
"""An unused id is deleted after this time: Kafka's `transactional.id.expiration.ms`."""
EPOCH_MAX: Final = 32766
"""Highest epoch that a producer gets. The broker uses the next one to abort a transaction."""
NO_EPOCH: Final = -1


class TransactionStatus(Enum):
    """Status of a transaction: Kafka's number, which is stored, and Kafka's name, which tools show."""

    number: int

    def __new__(cls, number: int, title: str) -> TransactionStatus:
        member = object.__new__(cls)
        member._value_ = title
        member.number = number
        return member

    EMPTY = 0, "Empty"
    ONGOING = 1, "Ongoing"
    PREPARE_COMMIT = 2, "PrepareCommit"
    PREPARE_ABORT = 3, "PrepareAbort"
    COMPLETE_COMMIT = 4, "CompleteCommit"
    COMPLETE_ABORT = 5, "CompleteAbort"


BY_NUMBER: Final[Mapping[int, TransactionStatus]] = {status.number: status for status in TransactionStatus}
IDLE: Final = frozenset({TransactionStatus.EMPTY, TransactionStatus.COMPLETE_COMMIT, TransactionStatus.COMPLETE_ABORT})

_PREPARED_STATUS: Final[Mapping[tuple[TransactionStatus, bool], TransactionStatus]] = {
    # (status, commit?) -> prepared status; other combinations are refused. A client may request the same end again if
    # it did not get the response.
    (TransactionStatus.ONGOING, True): TransactionStatus.PREPARE_COMMIT,
    (TransactionStatus.ONGOING, False): TransactionStatus.PREPARE_ABORT,
    (TransactionStatus.PREPARE_COMMIT, True): TransactionStatus.PREPARE_COMMIT,
    (TransactionStatus.PREPARE_ABORT, False): TransactionStatus.PREPARE_ABORT,
    (TransactionStatus.COMPLETE_COMMIT, True): TransactionStatus.COMPLETE_COMMIT,
    (TransactionStatus.COMPLETE_ABORT, False): TransactionStatus.COMPLETE_ABORT,
}
_COMPLETED_STATUS: Final[Mapping[TransactionStatus, TransactionStatus]] = {
    TransactionStatus.PREPARE_COMMIT: TransactionStatus.COMPLETE_COMMIT,
    TransactionStatus.PREPARE_ABORT: TransactionStatus.COMPLETE_ABORT,
}


class ProducerIdAndEpoch(NamedTuple):
    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Transaction:
    """State of a transactional id. Times are wall clock, in ms.

    `last_epoch` is the previous epoch of the current producer. If the producer did not receive its new epoch, it
    repeats the InitProducerId request with `last_epoch`. It is NO_EPOCH if no such request is possible: the producer is
    new or has a new producer id, or the broker has raised the epoch to fence it.
    """

    producer_id: int
    epoch: int
    last_epoch: int
    timeout_ms: int
    status: TransactionStatus
    partitions: frozenset[TopicPartition]
    changed_at_ms: int
    started_at_ms: int

    @classmethod
    def new(cls, producer_id: int, timeout_ms: int, now_ms: int) -> Transaction:
        return cls(producer_id, 0, NO_EPOCH, timeout_ms, TransactionStatus.EMPTY, frozenset(), now_ms, -1)

    @property
    def is_prepared(self) -> bool:
        """True if commit or abort is decided but not all markers are written."""
        return self.status in _COMPLETED_STATUS

    @property
    def is_commit(self) -> bool:
        return self.status in (TransactionStatus.PREPARE_COMMIT, TransactionStatus.COMPLETE_COMMIT)

    def is_timed_out(self, now_ms: int) -> bool:
        """True if the transaction is open and its start is further from `now_ms` than its timeout, in the past or in
        the future. In the future it means that the clock was set back; consumers would have to wait until the clock
        reaches the start time again."""
        return self.status is TransactionStatus.ONGOING and abs(now_ms - self.started_at_ms) > self.timeout_ms

    def is_expired(self, now_ms: int) -> bool:
        return self.status in IDLE and now_ms - self.changed_at_ms > ID_EXPIRATION_MS

    # Producers

    def check_claim(self, claimed: ProducerIdAndEpoch | None) -> None:
        """Checks that the client of an InitProducerId request may get the next epoch of the transactional id.

        Args:
            claimed: the producer id and epoch in the request of a client that continues as the current producer; None
                for a new producer, which is always accepted.

        Raises:
            RequestRefused: another producer has taken over the transactional id, or the broker has fenced the producer.
        """
        if claimed is None:
            return
        is_current = claimed.epoch == self.epoch or (self.last_epoch != NO_EPOCH and claimed.epoch == self.last_epoch)
        if claimed.producer_id != self.producer_id or not is_current:
            raise _fenced(ErrorCode.PRODUCER_FENCED, claimed.epoch, self)

    def is_retry_of(self, claimed: ProducerIdAndEpoch | None) -> bool:
        """True if an InitProducerId request repeats the one that returned the current epoch, because the client did not
        receive the response. `claimed` is the producer id and epoch in the request, None for a new producer."""
        return claimed is not None and claimed == (self.producer_id, self.last_epoch)

    def with_next_epoch(
        self, claimed: ProducerIdAndEpoch | None, timeout_ms: int, now_ms: int, *, next_id: int | None
    ) -> Transaction:
        """Returns the state after InitProducerId: no transaction is open, and the epoch is the next one.

        Args:
            claimed: the producer id and epoch in the request; None for a new producer.
            timeout_ms: the transaction timeout in the request.
            now_ms: wall clock, the time of this change.
            next_id: new producer id, used with epoch 0 because the epochs of the old one are used up; else None.
        """
        return Transaction(
            self.producer_id if next_id is None else next_id,
            self.epoch + 1 if next_id is None else 0,
            self.epoch if claimed is not None and next_id is None else NO_EPOCH,
            timeout_ms,
            TransactionStatus.EMPTY,
            frozenset(),
            now_ms,
            -1,
        )

    def check_producer(self, producer: ProducerIdAndEpoch, fenced: ErrorCode = ErrorCode.PRODUCER_FENCED) -> None:
        """Checks that a producer is the one that may use the transactional id.

        Args:
            fenced: error code for an epoch that is not current.

        Raises:
            RequestRefused: the producer id or epoch is not current.
        """
        if producer.producer_id != self.producer_id:
            raise RequestRefused(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                f"the request has producer id {producer.producer_id}, but its transactional id belongs to producer id "
                f"{self.producer_id}",
            )
        if producer.epoch != self.epoch:
            raise _fenced(fenced, producer.epoch, self)

    def check_transactional_write(self, producer: ProducerIdAndEpoch, topic_partition: TopicPartition) -> None:
        """Checks that a producer may write to a partition in its open transaction.

        Raises:
            RequestRefused: the producer is not current, or the partition is not in an open transaction.
        """
        self.check_producer(producer, ErrorCode.INVALID_PRODUCER_EPOCH)
        if self.status is not TransactionStatus.ONGOING or topic_partition not in self.partitions:
            raise RequestRefused(
                ErrorCode.INVALID_TXN_STATE,
                f"partition {topic_partition[0]}-{topic_partition[1]} is not in the transaction "
                f"(status {self.status.value}); add the partition to the transaction first",
            )

    # Transitions

    def with_partitions(self, partitions: Iterable[TopicPartition], now_ms: int) -> Transaction:
        """Returns the state with these partitions added to the transaction, which starts if none is open. Returns the
        same object if nothing changes.

        Raises:
            RequestRefused: the previous transaction's markers are not written yet.
        """
        if self.is_prepared:
            raise RequestRefused(
                ErrorCode.CONCURRENT_TRANSACTIONS, "the previous transaction is still being completed; retry"
            )
        if self.status is TransactionStatus.ONGOING:
            more = self.partitions.union(partitions)
            return self if more == self.partitions else replace(self, partitions=more, changed_at_ms=now_ms)
        return replace(
            self,
            status=TransactionStatus.ONGOING,
            partitions=frozenset(partitions),
            changed_at_ms=now_ms,
            started_at_ms=now_ms,
        )

    def prepare_end(self, now_ms: int, *, is_commit: bool) -> Transaction:
        """Returns the state after the decision, made at the time `now_ms`, to commit the open transaction, or to abort
        it if `is_commit` is False; `self` if the same was already decided.

        Raises:
            RequestRefused: no transaction is open, or the opposite is decided.
        """
        status = _PREPARED_STATUS.get((self.status, is_commit))
        if status is None:
            requested_end = "committed" if is_commit else "aborted"
            raise RequestRefused(
                ErrorCode.INVALID_TXN_STATE, f"a transaction in status {self.status.value} cannot be {requested_end}"
            )
        return self if status is self.status else replace(self, status=status, changed_at_ms=now_ms)

    def prepare_fence(self, now_ms: int) -> Transaction:
        """Returns the state after the decision to abort the open transaction, with a higher epoch, so that the current
        producer can no longer use the transactional id."""
        assert self.status is TransactionStatus.ONGOING
        return replace(
            self,
            status=TransactionStatus.PREPARE_ABORT,
            epoch=self.epoch + 1,
            last_epoch=NO_EPOCH,
            changed_at_ms=now_ms,
        )

    def complete(self, now_ms: int) -> Transaction:
        """Returns the state with the status `CompleteCommit` or `CompleteAbort` instead of `Prepare…`, to be stored
        when all markers of the transaction are on disk."""
        return replace(self, status=_COMPLETED_STATUS[self.status], partitions=frozenset(), changed_at_ms=now_ms)


def check_timeout(timeout_ms: int) -> None:
    """Checks a client's transaction timeout.

    Raises:
        RequestRefused: the timeout is out of range.
    """
    if not 0 < timeout_ms <= TIMEOUT_MS_MAX:
        raise RequestRefused(
            ErrorCode.INVALID_TRANSACTION_TIMEOUT,
            f"the transaction timeout is {timeout_ms} ms; expected 1 to {TIMEOUT_MS_MAX}; set transaction.timeout.ms "
            "in the client",
        )


def _fenced(code: ErrorCode, epoch: int, current: Transaction) -> RequestRefused:
    return RequestRefused(
        code,
        f"the request has epoch {epoch} of producer id {current.producer_id}; the current one is {current.epoch}",
    )
