"""Partitions of one topic or of all: the offsets in the log, the lag of loads, when unread messages expire, and the lag
of consumer groups."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from flask import Blueprint, abort, render_template, request, url_for
from werkzeug.wrappers import Response

from headrace.console.caching import unchanged
from headrace.console.context import console
from headrace.console.sources import Reading
from headrace.console.tables import CellKind, PagedTable, TableColumn, TableView
from headrace.kafka_wire.group_lag import GroupLag, GroupLags
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.commit.state import EMPTY, LoaderState
from headrace.loader.inspect.offsets import (
    BrokerOffsets,
    PartitionStatus,
    TopicOffsets,
    next_offsets_of,
    partition_statuses,
)
from headrace.loader.plan.discover import is_wanted

blueprint = Blueprint("partitions", __name__)

AGE_S: Final = 15.0
SHOWN_GROUPS: Final = "groups"
LOST, SHORT, NO_LEADER, UNKNOWN, NEW, BEHIND, READ = (
    "messages lost",
    "log ends early",
    "no leader",
    "unknown",
    "not loaded",
    "unread",
    "all read",
)
RANKS: Final = {name: rank for rank, name in enumerate((READ, BEHIND, NEW, UNKNOWN, NO_LEADER, SHORT, LOST))}
BAD, ATTENTION = frozenset({LOST, SHORT}), frozenset({NO_LEADER, UNKNOWN})


@dataclass(frozen=True, slots=True)
class ShownPartition:
    """A partition. `expires_in_ms` is the time until the oldest unread message may expire, 0 if it is over; None if all
    are read, if messages do not expire, or if it is unknown. `is_lag_known` is False without the loader's state."""

    status: PartitionStatus
    on_broker: BrokerOffsets | None
    expires_in_ms: int | None = None
    is_lag_known: bool = True

    @property
    def state(self) -> str:
        one = self.status
        if not self.is_lag_known:
            return UNKNOWN
        if one.log_start is None or one.log_end is None:
            return NO_LEADER if self.on_broker is not None and self.on_broker.leader < 0 else UNKNOWN
        if one.next_offset is not None and one.next_offset < one.log_start and one.is_loaded:
            return LOST
        if one.next_offset is not None and one.next_offset > one.log_end:
            return SHORT
        if not one.is_loaded:
            return NEW
        return BEHIND if one.lag else READ

    @property
    def first_unread_ms(self) -> int | None:
        return self.on_broker.first_unread_ms if self.on_broker is not None and self.is_lag_known else None

    @property
    def held_back(self) -> int | None:
        """The offsets of open transactions, which cannot be read yet."""
        found = self.on_broker
        if found is None or found.high_watermark is None or found.end is None:
            return None
        return max(0, found.high_watermark - found.end) or None


def _topic_url(one: ShownPartition) -> str:
    return url_for("partitions.page", topic=one.status.topic)


_TOPIC: Final[TableColumn[ShownPartition]] = TableColumn(
    "topic", "topic", lambda one: one.status.topic, href=_topic_url
)
_PARTITION: Final[TableColumn[ShownPartition]] = TableColumn(
    "partition", "partition", lambda one: str(one.status.partition), order=lambda one: one.status.partition
)
_OFFSETS: Final[tuple[TableColumn[ShownPartition], ...]] = (
    TableColumn("state", "state", lambda one: one.state, CellKind.STATE, order=lambda one: RANKS[one.state]),
    TableColumn("lag", "lag", lambda one: one.status.lag, CellKind.NUMBER),
    TableColumn("next_offset", "next offset", lambda one: one.status.next_offset, CellKind.NUMBER),
    TableColumn("log_end", "end", lambda one: one.status.log_end, CellKind.NUMBER),
    TableColumn("log_start", "log start", lambda one: one.status.log_start, CellKind.NUMBER),
)
_LEADER: Final[TableColumn[ShownPartition]] = TableColumn(
    "leader",
    "leader",
    lambda one: one.on_broker.leader if one.on_broker is not None and one.on_broker.leader >= 0 else None,
    CellKind.NUMBER,
)
_PROBLEM: Final[TableColumn[ShownPartition]] = TableColumn(
    "problem", "problem", lambda one: one.on_broker.problem if one.on_broker is not None else ""
)

ALL: Final[PagedTable[ShownPartition]] = PagedTable(
    "partitions",
    (_TOPIC, _PARTITION, *_OFFSETS, _LEADER, _PROBLEM),
    lambda one: (one.status.topic, one.state),
    "There are no partitions of topics that loads read.",
)
OF_TOPIC: Final[PagedTable[ShownPartition]] = PagedTable(
    "topic-partitions",
    (
        _PARTITION,
        *_OFFSETS,
        TableColumn("held_back", "in open transactions", lambda one: one.held_back, CellKind.NUMBER),
        TableColumn("first_unread", "oldest unread", lambda one: one.first_unread_ms, CellKind.TIME),
        TableColumn("expires_in", "may expire in", lambda one: one.expires_in_ms, CellKind.DURATION),
        _LEADER,
        _PROBLEM,
    ),
    lambda one: (str(one.status.partition), one.state),
    "The topic has no partitions.",
)


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """A group's offset in one partition, and the group's state."""

    group: str
    state: str
    partition: int
    committed: int | None
    end: int | None
    lag: int | None


GROUPS: Final[PagedTable[GroupOffset]] = PagedTable(
    "topic-groups",
    (
        TableColumn("group", "group", lambda one: one.group),
        TableColumn("state", "state", lambda one: one.state),
        TableColumn("partition", "partition", lambda one: str(one.partition), order=lambda one: one.partition),
        TableColumn("lag", "lag", lambda one: one.lag, CellKind.NUMBER),
        TableColumn("committed", "committed", lambda one: one.committed, CellKind.NUMBER),
        TableColumn("end", "end", lambda one: one.end, CellKind.NUMBER),
    ),
    lambda one: (one.group, one.state),
    "No consumer group has committed an offset of this topic.",
)


@blueprint.get("/partitions")
def page() -> str | Response:
    topic = request.args.get("topic", "")
    state = read_loader_state()
    return _topic_page(topic, state) if topic else _list_page(state)


def _list_page(state: Reading[LoaderState]) -> str | Response:
    context = console()
    found = context.sources.read("partitions", context.brokers.all_partitions, max_age_s=AGE_S)
    if (response := unchanged(state, found)) is not None:
        return response
    include, exclude = context.settings.loader.topics_include, context.settings.loader.topics_exclude
    rows = [
        one
        for one in rows_of(state.value, found.value)
        if one.on_broker is not None or is_wanted(one.status.topic, include, exclude)
    ]
    rows.sort(key=lambda one: (-RANKS[one.state], -(one.status.lag or 0), one.status.topic, one.status.partition))
    view = ALL.view(rows, context.now_ms())
    if (export := view.export(state, found)) is not None:
        return export
    return render_template(
        "partitions.html",
        loads=state,
        brokers=found,
        topics=len({one.status.topic for one in rows}),
        counts=_counts(rows),
        lag=_sum(rows) if found.is_known else None,
        bad=BAD,
        attention=ATTENTION,
        table=view,
    )


def _topic_page(topic: str, state: Reading[LoaderState]) -> str | Response:
    context, now_ms = console(), console().now_ms()
    found = read_topic(topic, state.value or EMPTY)
    groups = _groups(topic, found) if request.args.get("show") == SHOWN_GROUPS else None
    if (response := unchanged(state, found, *([groups] if groups else []))) is not None:
        return response
    on_brokers = found.value or TopicOffsets({})
    rows = [
        _with_expiry(one, on_brokers.retention_ms, now_ms)
        for one in rows_of(state.value, on_brokers.partitions)
        if one.status.topic == topic
    ]
    if not rows and state.is_known and found.is_known:
        abort(404, f"The topic {topic} was not loaded, and the brokers respond: {on_brokers.problem}.")
    view: TableView[ShownPartition] | TableView[GroupOffset]
    if groups is None:
        view = OF_TOPIC.view(rows, now_ms, extra={"topic": topic})
        export = view.export(state, found)
    else:
        view = GROUPS.view(_group_rows(groups.value), now_ms, extra={"topic": topic, "show": SHOWN_GROUPS})
        export = view.export(groups)
    if export is not None:
        return export
    loader = context.settings.loader
    return render_template(
        "topic_partitions.html",
        topic=topic,
        loads=state,
        brokers=found,
        groups=groups,
        group_lags=groups.value.groups if groups is not None and groups.value is not None else (),
        notes=groups.value.notes if groups is not None and groups.value is not None else (),
        problem=on_brokers.problem,
        retention_ms=on_brokers.retention_ms,
        counts=_counts(rows),
        lag=_sum(rows),
        first=min((one for one in rows if one.expires_in_ms is not None), key=_expiry, default=None),
        is_wanted=is_wanted(topic, loader.topics_include, loader.topics_exclude),
        quoted=shlex.quote(topic),
        bad=BAD,
        attention=ATTENTION,
        table=view,
    )


def read_topic(topic: str, loaded: LoaderState) -> Reading[TopicOffsets]:
    """Returns the offsets of a topic on the brokers, at most `AGE_S` old."""
    context = console()
    next_offsets = next_offsets_of(loaded, topic)
    return context.sources.read(
        f"partitions {topic}", lambda: context.brokers.topic(topic, next_offsets), max_age_s=AGE_S
    )


def read_loader_state() -> Reading[LoaderState]:
    """Returns the loader's state after its newest commit, at most `AGE_S` old."""
    context = console()
    return context.sources.read("loader state", lambda: context.commits.read(lambda log: log.state), max_age_s=AGE_S)


def rows_of(
    loaded: LoaderState | None, on_brokers: Mapping[TopicPartition, BrokerOffsets] | None
) -> list[ShownPartition]:
    """Returns a row for each partition of the commit log or the brokers. An unknown argument is None. Without
    the loader's state the lags are unknown, too."""
    found = on_brokers or {}
    rows = [
        ShownPartition(one, found.get(TopicPartition(one.topic, one.partition)))
        for one in partition_statuses(loaded or EMPTY, on_brokers)
    ]
    if loaded is not None:
        return rows
    return [replace(row, status=replace(row.status, lag=None), is_lag_known=False) for row in rows]


def _with_expiry(row: ShownPartition, retention_ms: int | None, now_ms: int) -> ShownPartition:
    first_ms = row.first_unread_ms
    if not row.status.lag or first_ms is None or retention_ms is None or retention_ms < 0:
        return row
    return replace(row, expires_in_ms=max(0, first_ms + retention_ms - now_ms))


def _expiry(row: ShownPartition) -> int:
    assert row.expires_in_ms is not None
    return row.expires_in_ms


def _groups(topic: str, found: Reading[TopicOffsets]) -> Reading[GroupLags]:
    context = console()
    if not found.is_known:
        return Reading(None, found.reason, found.read_at_ms)
    ends = {tp: one.high_watermark for tp, one in found.known.partitions.items()}
    return context.sources.read(f"groups {topic}", lambda: context.brokers.groups(ends), max_age_s=AGE_S)


def _group_rows(found: GroupLags | None) -> list[GroupOffset]:
    """Returns the partitions of all groups, sorted by the lag of the group."""
    largest_first: Sequence[GroupLag] = sorted(found.groups if found else (), key=lambda one: -(one.lag or 0))
    return [
        GroupOffset(one.group.group_id, one.group.state, lag.partition, lag.committed, lag.end, lag.lag)
        for one in largest_first
        for lag in one.partitions
    ]


def _counts(rows: Sequence[ShownPartition]) -> list[tuple[str, int]]:
    """Returns the numbers of partitions by state, the worst first."""
    states = [one.state for one in rows]
    return [(name, states.count(name)) for name in reversed(RANKS) if name in states]


def _sum(rows: Sequence[ShownPartition]) -> int | None:
    known = [one.status.lag for one in rows if one.status.lag is not None]
    return sum(known) if known else None
