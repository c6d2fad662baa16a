"""The group coordinator: what clients ask of the groups of this node, and the requests that wait for them.

An answer goes out when what it tells is in the log and, unless fsync is `none`, on disk.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from headrace.broker.config import FsyncMode
from headrace.broker.coordinator.commits import Commits
from headrace.broker.coordinator.consumer_group import ConsumerGroup, ConsumerGroupState, Topics
from headrace.broker.coordinator.consumer_members import JOINS
from headrace.broker.coordinator.consumer_messages import HeartbeatRequest, HeartbeatResult
from headrace.broker.coordinator.group import SESSION_TIMEOUT_MS_MIN, Group, GroupState
from headrace.broker.coordinator.group_store import GroupStore, tombstones
from headrace.broker.coordinator.members import Ticket
from headrace.broker.coordinator.messages import JoinRequest, JoinResult, Outcome, SyncRequest, SyncResult
from headrace.broker.coordinator.records import OffsetKey
from headrace.broker.coordinator.table import Entry, LogTable
from headrace.broker.errors import RequestRefused
from headrace.broker.log.flusher import Flusher
from headrace.broker.log.partition_log import PartitionLog
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.turns import Turns

logger = logging.getLogger(__name__)

COMPACT_BYTES = 4 * 1024 * 1024
"""The log is compacted when it has grown by this much: some fifty thousand commits, read in under a second."""
EMPTY_GROUP_MS = 600_000
"""Without members and offsets a group is forgotten after this time, as in Kafka: consumers of a moment make up ids."""
MEMBER_PREFIX_CHARS = 200
"""Of a client id or instance id, at the front of a member id."""
CONSUMER_SESSION_TIMEOUT_MS, CONSUMER_HEARTBEAT_INTERVAL_MS = 45_000, 5000
"""Of members of consumer groups (KIP-848), which are told the one and are let go after the other; Kafka's defaults."""
TICK_MS_MAX = 60_000
"""The longest the coordinator sleeps; deadlines wake it earlier."""


UNUSED = (GroupState.EMPTY, ConsumerGroupState.EMPTY)


class GroupCoordinator:
    """Not for use by threads. `now_ms` is the wall clock, for what is stored; deadlines go by the monotonic one."""

    def __init__(
        self,
        log: PartitionLog,
        flusher: Flusher,
        fsync: FsyncMode,
        now_ms: Callable[[], int],
        *,
        topics: Topics,
        unlink: Callable[[list[Path]], object],
        rebalance_delay_ms: int = 0,
        session_timeout_ms_min: int = SESSION_TIMEOUT_MS_MIN,
        consumer_session_timeout_ms: int = CONSUMER_SESSION_TIMEOUT_MS,
        monotonic_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
    ) -> None:
        self._table = LogTable(log, flusher, fsync, now_ms, unlink=unlink, grows_by=COMPACT_BYTES)
        self._now_ms, self._monotonic_ms = now_ms, monotonic_ms
        self._topics, self._consumer_session_timeout_ms = topics, consumer_session_timeout_ms
        self._tickets = itertools.count(1)
        self._waiting: dict[Ticket, asyncio.Future[JoinResult | SyncResult]] = {}
        self._changed = asyncio.Event()
        self._due_ms: dict[str, int] = {}  # group id -> when its time has something to do, at the earliest
        self._stopped = False
        self.store = GroupStore(
            self._table,
            now_ms,
            monotonic_ms,
            on_due=self._changed.set,
            make_classic=lambda group_id: Group(group_id, _new_member_id, rebalance_delay_ms, session_timeout_ms_min),
            make_consumer=lambda group_id: ConsumerGroup(group_id, consumer_session_timeout_ms),
        )
        self.commits = Commits(self.store, topics, monotonic_ms)
        self.groups, self.offsets = self.store.groups, self.store.offsets
        for group in self.groups.values():
            self._note_due(group)

    # Members

    async def join(self, group_id: str, request: JoinRequest) -> JoinResult:
        if not group_id:
            return JoinResult(ErrorCode.INVALID_GROUP_ID, request.member_id)
        group = self.groups.get(group_id)
        if not isinstance(group, Group):
            if group is None and request.member_id:
                return JoinResult(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
            try:
                group = self.store.add_group(group_id) if group is None else self._become_classic(group)
            except RequestRefused as refused:
                return JoinResult(refused.code, request.member_id)
        ticket, answer = self._ticket()
        self._carry_out(group, group.join(request, ticket, self._monotonic_ms()))
        result = await self._answered(group, ticket, answer)
        assert isinstance(result, JoinResult)
        return result

    async def sync(self, group_id: str, request: SyncRequest) -> SyncResult:
        group = self.groups.get(group_id)
        if not isinstance(group, Group):
            return SyncResult(ErrorCode.UNKNOWN_MEMBER_ID)
        ticket, answer = self._ticket()
        self._carry_out(group, group.sync(request, ticket, self._monotonic_ms()))
        result = await self._answered(group, ticket, answer)
        assert isinstance(result, SyncResult)
        return result

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        group = self.groups.get(group_id)
        if not isinstance(group, Group):
            return ErrorCode.UNKNOWN_MEMBER_ID
        return group.heartbeat(member_id, instance_id, generation, self._monotonic_ms())

    def leave(self, group_id: str, member_id: str, instance_id: str | None) -> ErrorCode:
        group = self.groups.get(group_id)
        if not isinstance(group, Group):
            return ErrorCode.UNKNOWN_MEMBER_ID
        code, outcome = group.leave(member_id, instance_id, self._monotonic_ms())
        self._carry_out(group, outcome)
        return code

    # Members of consumer groups (KIP-848)

    def consumer_heartbeat(self, group_id: str, request: HeartbeatRequest) -> HeartbeatResult:
        """
        Raises:
            RequestRefused: the member has to join anew, or may not; or its group could not be stored.
        """
        if not group_id:
            raise RequestRefused(ErrorCode.INVALID_REQUEST, "a group without a name")
        present = self.groups.get(group_id)
        if isinstance(present, ConsumerGroup):
            group = present
        elif present is not None and present.state is not GroupState.EMPTY:
            raise RequestRefused(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group_id!r} is of the classic protocol")
        elif request.epoch != JOINS:
            # Members whose group was lost with the power join again.
            raise RequestRefused(ErrorCode.UNKNOWN_MEMBER_ID, f"there is no consumer group {group_id!r}")
        else:
            self.store.check_new(group_id, present)
            group = ConsumerGroup(group_id, self._consumer_session_timeout_ms)
        result = group.heartbeat(request, self._topics, self._monotonic_ms())
        if group.unstored:
            # Together with the end of the classic group that it was before.
            self._store_changes(group, tombstones(present) if isinstance(present, Group) else ())
            self.groups[group_id] = group
            self._note_due(group)
        return result

    def check_fetch(self, group_id: str, member_id: str | None, epoch: int) -> None:
        """Raises:
        RequestRefused: this member in this epoch may not ask for offsets.
        """
        group = self.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            group.check_fetch(member_id, epoch)

    def _become_classic(self, group: ConsumerGroup) -> Group:
        """Raises:
        RequestRefused: it has members, or that could not be stored.
        """
        if group.members:
            raise RequestRefused(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"group {group.group_id!r} is of the consumer protocol"
            )
        self.store.append(tombstones(group))
        return self.store.add_classic(group.group_id)

    def _store_changes(self, group: ConsumerGroup, gone: Sequence[Entry] = ()) -> None:
        """Stores what changed, if it did; what cannot be stored is stored with the next change.

        Raises:
            RequestRefused: the disk refused it.
        """
        if not group.members:
            self.store.note_unused(group.group_id)
        self.store.append([*gone, *self.store.unstored_of(group)])
        if group.unstored.epochs:
            logger.info(
                "group changed group=%s state=%s epoch=%d members=%d",
                group.group_id,
                group.state,
                group.epoch,
                len(group.members),
            )
        group.unstored.clear()

    # Groups as a whole

    async def delete_group(self, group_id: str) -> None:
        """Raises:
        RequestRefused: there is no such group, or it has members.
        """
        group = self.groups.get(group_id)
        if group is None:
            raise RequestRefused(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id!r}")
        group.check_empty()
        if self.offsets.pending_of(group_id):
            raise RequestRefused(ErrorCode.NON_EMPTY_GROUP, f"a transaction is to commit offsets of group {group_id!r}")
        # Some at a time, between which somebody may join or commit, or delete it too.
        doomed = [OffsetKey(group_id, *place) for place in self.offsets.of_group(group_id)]
        await self.commits.forget(doomed, lambda key: self._is_unused(group))
        if not self._is_unused(group) or self.offsets.of_group(group_id):
            raise RequestRefused(ErrorCode.NON_EMPTY_GROUP, f"group {group_id!r} is used again")
        self.store.append(tombstones(group))
        group.delete()
        self.store.forget(group_id)
        await self.store.forced()
        logger.info("group deleted group=%s", group_id)

    def _is_unused(self, group: Group | ConsumerGroup) -> bool:
        """Is it there, without members, and does no transaction commit offsets for it?"""
        is_pending = self.offsets.pending_of(group.group_id)
        return self.groups.get(group.group_id) is group and group.state in UNUSED and not is_pending

    async def keep_house(self) -> None:
        """Expires offsets of groups that nobody uses any more, and forgets what a deletion of a topic could not.

        Raises:
            RequestRefused: the disk refused it.
        """
        turns = Turns()
        for group_id in list(self.groups):
            await turns.give()
            now_ms, group = self._now_ms(), self.groups.get(group_id)
            if group is not None and group.state in UNUSED:
                expired = self.offsets.expired(group_id, self.store.unused_since_ms(group_id), now_ms)
                # Some at a time, between which the group may be used again.
                await self.commits.forget(expired, partial(self._is_expired, now_ms=now_ms))
                if self._is_unused(group) and not self.offsets.of_group(group_id):
                    self._forget_unused(group_id, self.store.unused_since_ms(group_id), now_ms)
        await self.commits.forget_rest()

    def _is_expired(self, key: OffsetKey, now_ms: int) -> bool:
        group, committed = self.groups.get(key.group_id), self.offsets.get(key)
        return (
            group is not None
            and group.state in UNUSED
            and committed is not None
            and self.offsets.is_expired(committed.committed_at_ms, now_ms)
            # A transaction that is to commit it anew uses it.
            and (key.topic, key.partition) not in self.offsets.pending_of(key.group_id)
        )

    def _forget_unused(self, group_id: str, unused_since_ms: int, now_ms: int) -> None:
        group = self.groups[group_id]
        # One without a generation was asked for and never joined: nothing is stored of it.
        is_old = now_ms - unused_since_ms > EMPTY_GROUP_MS
        if isinstance(group, ConsumerGroup):
            is_stored, is_due = True, is_old
        else:
            is_stored = bool(group.generation)
            is_due = (is_old or not is_stored) and not group.expects_members
        if is_due:
            if is_stored:
                self.store.append(tombstones(group))
            self.store.forget(group_id)

    # Time

    async def run(self) -> None:
        """Lets time pass for the groups, until `stop`."""
        while not self._stopped:
            now_ms = self._monotonic_ms()
            await self.look(now_ms)
            if not self._stopped:
                self._changed.clear()
            wait_ms = min(max(min(self._due_ms.values(), default=now_ms + TICK_MS_MAX) - now_ms, 1), TICK_MS_MAX)
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def look(self, now_ms: int) -> None:
        """Does what time has come for by the monotonic clock, and compacts the log when it is due."""
        for group_id in [group_id for group_id, due_ms in self._due_ms.items() if due_ms <= now_ms]:
            try:
                self._tick(group_id, now_ms)
            except Exception:
                # Its members find out by their own timeouts; the other groups go on.
                logger.exception("group stuck group=%s", group_id)
                self._due_ms[group_id] = now_ms + TICK_MS_MAX
        if self._table.is_due:
            try:
                await self.store.compact()
            except (OSError, RequestRefused) as error:
                logger.error("offsets not compacted bytes=%d reason=%s", self._table.log.size, error)
            except Exception:
                # Nor must that end the time of the groups.
                logger.exception("offsets not compacted bytes=%d", self._table.log.size)

    def _tick(self, group_id: str, now_ms: int) -> None:
        group = self.groups.get(group_id)
        due_ms = group.next_deadline_ms() if group is not None else None
        if group is None or due_ms is None:
            del self._due_ms[group_id]
        elif due_ms <= now_ms:
            outcome = group.tick(now_ms)
            if isinstance(group, Group):
                self._carry_out(group, outcome)
                return
            self._note_due(group)
            try:
                self._store_changes(group)
            except RequestRefused as refused:
                logger.error("group not stored group=%s reason=%s", group_id, refused)
        else:
            self._due_ms[group_id] = due_ms

    def stop(self) -> None:
        self._stopped = True
        self._changed.set()

    def _ticket(self) -> tuple[Ticket, asyncio.Future[JoinResult | SyncResult]]:
        ticket = next(self._tickets)
        self._waiting[ticket] = asyncio.get_running_loop().create_future()
        return ticket, self._waiting[ticket]

    async def _answered(
        self, group: Group, ticket: Ticket, answer: asyncio.Future[JoinResult | SyncResult]
    ) -> JoinResult | SyncResult:
        try:
            return await answer
        except asyncio.CancelledError:
            # Its connection is closed, and nobody but its session would tell that it is gone.
            self._waiting.pop(ticket, None)
            self._carry_out(group, group.hung_up(ticket, self._monotonic_ms()))
            raise

    def _carry_out(self, group: Group, outcome: Outcome) -> None:
        """Stores the group if it changed, then sends the replies."""
        error = ErrorCode.NONE
        if outcome.must_store:
            if group.state is GroupState.EMPTY:
                self.store.note_unused(group.group_id)
            try:
                self.store.append([self.store.entry_of(group)])
            except RequestRefused as refused:
                logger.error("group not stored group=%s reason=%s", group.group_id, refused)
                error = ErrorCode.COORDINATOR_NOT_AVAILABLE
            logger.info(
                "group changed group=%s state=%s generation=%d members=%d",
                group.group_id,
                group.state,
                group.generation,
                len(group.members),
            )
        for reply in outcome.replies:
            waiting = self._waiting.pop(reply.ticket, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(_unstored(reply.result, error) if error else reply.result)
        self._note_due(group)

    def _note_due(self, group: Group | ConsumerGroup) -> None:
        due_ms = group.next_deadline_ms()
        if due_ms is None:
            self._due_ms.pop(group.group_id, None)
        else:
            self._due_ms[group.group_id] = due_ms
            self._changed.set()


def _unstored(result: JoinResult | SyncResult, error: ErrorCode) -> JoinResult | SyncResult:
    """What is answered where the group could not be stored: neither an assignment nor the new id of a static member,
    which the next start would not know. What was refused anyway stays refused."""
    if result.error is not ErrorCode.NONE:
        return result
    return SyncResult(error) if isinstance(result, SyncResult) else JoinResult(error, result.member_id)


def _new_member_id(prefix: str) -> str:
    return f"{prefix[:MEMBER_PREFIX_CHARS]}-{uuid.uuid4()}"
