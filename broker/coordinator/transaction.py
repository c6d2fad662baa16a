"""One transactional id: who may use it, and what its transaction may become. Decisions over values, without I/O.

Of all producers with a transactional id the one that asked last for its producer id and epoch may use it; the others
are fenced by their epoch (KIP-98). A transaction is ongoing from its first partition on. Its end is decided when the
state `prepare…` is on disk: from then on its markers are written, again after a crash, until the state is
`complete…`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple

from headrace.broker.errors import RequestRefused
from headrace.broker.protocol.error_codes import ErrorCode

TIMEOUT_MS_MAX: Final = 900_000
"""That a client may ask for: Kafka's `transaction.max.timeout.ms`."""
EXPIRATION_MS: Final = 7 * 86_400_000
"""An id that nobody uses is forgotten after this time: Kafka's `transactional.id.expiration.ms`."""
EPOCH_MAX: Final = 32766
"""That a producer is given: the next one is left for the broker, to end a transaction with."""
NO_EPOCH: Final = -1

Partition = tuple[str, int]


class Status(Enum):
    """With Kafka's number, by which it is stored, and Kafka's name, by which tools ask for it."""

    number: int

    def __new__(cls, number: int, title: str) -> Status:
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


BY_NUMBER: Final[Mapping[int, Status]] = {status.number: status for status in Status}
IDLE: Final = frozenset({Status.EMPTY, Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT})

_ENDED: Final[Mapping[tuple[Status, bool], Status]] = {
    # (status, is it to be committed) -> status; what is not here is refused. An end that was decided may be asked for
    # again, by a client that was not told of it.
    (Status.ONGOING, True): Status.PREPARE_COMMIT,
    (Status.ONGOING, False): Status.PREPARE_ABORT,
    (Status.PREPARE_COMMIT, True): Status.PREPARE_COMMIT,
    (Status.PREPARE_ABORT, False): Status.PREPARE_ABORT,
    (Status.COMPLETE_COMMIT, True): Status.COMPLETE_COMMIT,
    (Status.COMPLETE_ABORT, False): Status.COMPLETE_ABORT,
}
_COMPLETED: Final[Mapping[Status, Status]] = {
    Status.PREPARE_COMMIT: Status.COMPLETE_COMMIT,
    Status.PREPARE_ABORT: Status.COMPLETE_ABORT,
}


class Identity(NamedTuple):
    """A producer id and its epoch."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Transaction:
    """Times are of the wall clock. `last_epoch` is what the epoch was raised from on the producer's own wish, so that
    it may ask again if it was not told; NO_EPOCH where another one has taken over."""

    producer_id: int
    epoch: int
    last_epoch: int
    timeout_ms: int
    status: Status
    partitions: frozenset[Partition]
    changed_at_ms: int
    started_at_ms: int

    @classmethod
    def new(cls, producer_id: int, timeout_ms: int, now_ms: int) -> Transaction:
        return cls(producer_id, 0, NO_EPOCH, timeout_ms, Status.EMPTY, frozenset(), now_ms, -1)

    @property
    def is_decided(self) -> bool:
        """Are its markers to be written?"""
        return self.status in _COMPLETED

    @property
    def is_commit(self) -> bool:
        return self.status in (Status.PREPARE_COMMIT, Status.COMPLETE_COMMIT)

    def is_timed_out(self, now_ms: int) -> bool:
        """Did it begin longer ago than it may take? Or so far ahead, where the clock has been set back since: what was
        begun in another year would keep its partitions from readers until that year comes."""
        return self.status is Status.ONGOING and abs(now_ms - self.started_at_ms) > self.timeout_ms

    def is_expired(self, now_ms: int) -> bool:
        return self.status in IDLE and now_ms - self.changed_at_ms > EXPIRATION_MS

    # Who may use it

    def check_claim(self, claimed: Identity | None) -> None:
        """May somebody who says to be this producer, or nobody in particular, take the id over?

        Raises:
            RequestRefused: another producer has done so since.
        """
        if claimed is None:
            return
        is_known = claimed.epoch == self.epoch or (self.last_epoch != NO_EPOCH and claimed.epoch == self.last_epoch)
        if claimed.producer_id != self.producer_id or not is_known:
            raise _fenced(ErrorCode.PRODUCER_FENCED, claimed.epoch, self)

    def is_repeated_by(self, claimed: Identity | None) -> bool:
        """Does a producer ask again for the epoch that it has been given and was not told?"""
        return claimed is not None and claimed == (self.producer_id, self.last_epoch)

    def taken_over(self, claimed: Identity | None, timeout_ms: int, now_ms: int, *, next_id: int | None) -> Transaction:
        """For the next epoch; of `next_id`, with the first one, where there is one."""
        return Transaction(
            self.producer_id if next_id is None else next_id,
            self.epoch + 1 if next_id is None else 0,
            self.epoch if claimed is not None and next_id is None else NO_EPOCH,
            timeout_ms,
            Status.EMPTY,
            frozenset(),
            now_ms,
            -1,
        )

    def check_user(self, user: Identity, fenced: ErrorCode = ErrorCode.PRODUCER_FENCED) -> None:
        """
        Raises:
            RequestRefused: this producer, or its epoch, may not use the id; the latter with `fenced`.
        """
        if user.producer_id != self.producer_id:
            raise RequestRefused(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                f"producer {user.producer_id}; the transactional id is of producer {self.producer_id}",
            )
        if user.epoch != self.epoch:
            raise _fenced(fenced, user.epoch, self)

    def check_part(self, user: Identity, partition: Partition) -> None:
        """May this producer write to a partition in its transaction?

        Raises:
            RequestRefused: it may not.
        """
        self.check_user(user, ErrorCode.INVALID_PRODUCER_EPOCH)
        if self.status is not Status.ONGOING or partition not in self.partitions:
            raise RequestRefused(
                ErrorCode.INVALID_TXN_STATE,
                f"{partition[0]}-{partition[1]} is not in the transaction, whose state is {self.status.value}",
            )

    # What becomes of it

    def with_partitions(self, partitions: Iterable[Partition], now_ms: int) -> Transaction:
        """Begins the transaction unless it is ongoing; the same object where it has them all.

        Raises:
            RequestRefused: its end is decided and not yet written.
        """
        if self.is_decided:
            raise RequestRefused(ErrorCode.CONCURRENT_TRANSACTIONS, "the last transaction is still being ended")
        if self.status is Status.ONGOING:
            more = self.partitions.union(partitions)
            return self if more == self.partitions else replace(self, partitions=more, changed_at_ms=now_ms)
        return replace(
            self,
            status=Status.ONGOING,
            partitions=frozenset(partitions),
            changed_at_ms=now_ms,
            started_at_ms=now_ms,
        )

    def ended(self, now_ms: int, *, is_commit: bool) -> Transaction:
        """Decides its end; the same object where that is decided already.

        Raises:
            RequestRefused: there is nothing to end, or it ends otherwise.
        """
        status = _ENDED.get((self.status, is_commit))
        if status is None:
            wish = "committed" if is_commit else "aborted"
            raise RequestRefused(ErrorCode.INVALID_TXN_STATE, f"{self.status.value} cannot be {wish}")
        return self if status is self.status else replace(self, status=status, changed_at_ms=now_ms)

    def fenced(self, now_ms: int) -> Transaction:
        """Decides that an ongoing one is aborted, whatever its producer does: its epoch ends with it."""
        assert self.status is Status.ONGOING
        return replace(
            self,
            status=Status.PREPARE_ABORT,
            epoch=self.epoch + 1,
            last_epoch=NO_EPOCH,
            changed_at_ms=now_ms,
        )

    def completed(self, now_ms: int) -> Transaction:
        """All its markers are on disk."""
        return replace(self, status=_COMPLETED[self.status], partitions=frozenset(), changed_at_ms=now_ms)


def check_timeout(timeout_ms: int) -> None:
    """
    Raises:
        RequestRefused: a transaction may not take so long.
    """
    if not 0 < timeout_ms <= TIMEOUT_MS_MAX:
        raise RequestRefused(
            ErrorCode.INVALID_TRANSACTION_TIMEOUT, f"{timeout_ms} ms; expected between 1 and {TIMEOUT_MS_MAX}"
        )


def _fenced(code: ErrorCode, epoch: int, present: Transaction) -> RequestRefused:
    return RequestRefused(code, f"epoch {epoch} of producer {present.producer_id}, whose epoch is {present.epoch}")
