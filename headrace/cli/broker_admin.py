"""`headrace broker topics` and `groups`: reports of running brokers, the bundled one or Apache Kafka."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from headrace.cli.colour import styled
from headrace.cli.command import (
    EXIT_OK,
    CommandError,
    add_format_flag,
    add_settings_flags,
    examples,
    print_json,
    settings_from,
)
from headrace.cli.report import (
    ATTENTION,
    WELL,
    ReportRow,
    TextReport,
    add_all_flag,
    add_topic_patterns,
    count_text,
    print_lines,
    print_report,
    select_topics,
)
from headrace.kafka_wire.topic_patterns import is_pattern
from headrace.settings.addresses import resolve_bootstrap_servers

if TYPE_CHECKING:
    from headrace.kafka_wire.cluster import KafkaCluster
    from headrace.kafka_wire.group_lag import GroupLag
    from headrace.kafka_wire.topic_listing import ListedTopic


def add_verbs(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `topics` and `groups` to the verbs of `headrace broker`."""
    topics = verbs.add_parser(
        "topics",
        help="show the topics of running brokers, with partitions and sizes",
        description="Shows every topic with its partitions, offsets, size and the configuration that differs from the "
        "brokers' defaults, the largest first; for a single named topic, each partition. Works with all Kafka brokers.",
        epilog=examples("broker topics", "broker topics orders", "broker topics 'shop.*' --all"),
    )
    add_topic_patterns(topics, positional=True)
    topics.add_argument("--internal", action="store_true", help="include the brokers' internal topics")
    _add_flags(topics)
    topics.set_defaults(run_verb=run_topics)
    groups = verbs.add_parser(
        "groups",
        help="show the consumer groups of running brokers, with members and lag",
        description="Shows every consumer group with its state, members and lag, first those with a lag but without "
        "members; for a named group, its members and each partition. The lag is the number of offsets from the "
        "committed one to the log end.",
        epilog=examples("broker groups", "broker groups shop", "broker groups --format json"),
    )
    groups.add_argument("group", nargs="?", metavar="GROUP", help="members and partitions of this group (default: all)")
    _add_flags(groups)
    groups.set_defaults(run_verb=run_groups)


def _add_flags(parser: argparse.ArgumentParser) -> None:
    add_all_flag(parser)
    add_settings_flags(parser, ("kafka.bootstrap_servers",))
    add_format_flag(parser)


@contextmanager
def _cluster(args: argparse.Namespace) -> Iterator[KafkaCluster]:
    """Yields a connection to the configured brokers.

    Raises:
        CommandError: no broker can be reached, or they reject the connection or a request in the context.
    """
    from headrace.kafka_wire.cluster import KafkaCluster
    from headrace.kafka_wire.errors import KafkaError
    from headrace.kafka_wire.from_settings import kafka_security

    settings = settings_from(args)
    try:
        with KafkaCluster(resolve_bootstrap_servers(settings), security=kafka_security(settings)) as cluster:
            yield cluster
    except KafkaError as error:
        raise CommandError(str(error)) from error


# Topics


def run_topics(args: argparse.Namespace) -> int:
    from headrace.kafka_wire.topic_listing import list_topics

    with _cluster(args) as cluster:
        names = _selected_names(cluster, args)
        metadata = cluster.metadata(names)
        for name in args.topics:
            if name in metadata.topics and (problem := metadata.topics[name].error):
                raise CommandError(f"topic {name}: {problem}")
        found = list_topics(cluster, metadata, with_internal=args.internal or bool(args.topics))
    if args.format == "json":
        print_json({"topics": [_topic_json(row) for row in found.topics], "notes": found.notes})
        return EXIT_OK
    if len(args.topics) == 1 and not is_pattern(args.topics[0]):
        _print_partitions(found.topics[0], shows_all=args.all)
    else:
        _print_topics(found.topics, shows_all=args.all)
    _print_notes(found.notes, shows_all=args.all)
    return EXIT_OK


def _selected_names(cluster: KafkaCluster, args: argparse.Namespace) -> list[str] | None:
    """Returns the names of the topics that the command line selects; None for all."""
    if not any(map(is_pattern, args.topics)):
        return args.topics or None
    return select_topics(args.topics, cluster.metadata().topics, "does not exist")


def _print_topics(rows: Sequence[ListedTopic], *, shows_all: bool) -> None:
    partitions = count_text(sum(len(row.partitions) for row in rows), "partition")
    size = _megabytes(_total(one.size_bytes for row in rows for one in row.partitions))
    totals = f"{count_text(len(rows), 'topic')}, {partitions}, {size} MB"
    header = ("topic", "partitions", "offsets", "MB", "configuration")
    print_report(
        TextReport(totals, "topic", header, tuple(map(_topic_report_row, rows)), (1, 2, 3), is_listing=True),
        shows_all=shows_all,
    )


def _topic_report_row(row: ListedTopic) -> ReportRow:
    size = _total(one.size_bytes for one in row.partitions)
    cells = (
        row.name,
        str(len(row.partitions)),
        _number(_total(one.records for one in row.partitions)),
        _megabytes(size),
        _configuration(row) or "-",
    )
    is_incomplete = not row.partitions or any(one.records is None for one in row.partitions)
    return ReportRow(cells, ATTENTION if is_incomplete else WELL, size or 0)


def _configuration(row: ListedTopic) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(row.configs.items()))


def _print_partitions(row: ListedTopic, *, shows_all: bool) -> None:
    title = f"topic {row.name}{f', id {row.topic_id}' if row.topic_id else ''}{', internal' if row.is_internal else ''}"
    print(styled(title, "head"))
    totals = f"configuration: {_configuration(row) or 'default'}"
    rows = tuple(
        ReportRow(
            (
                str(one.partition),
                str(one.leader),
                _plain(one.start),
                _plain(one.end),
                _number(one.records),
                _megabytes(one.size_bytes),
            ),
            ATTENTION if one.records is None else WELL,
        )
        for one in row.partitions
    )
    header = ("partition", "leader", "start", "end", "offsets", "MB")
    print_report(TextReport(totals, "partition", header, rows, range(6), is_listing=True), shows_all=shows_all)


def _topic_json(row: ListedTopic) -> dict[str, Any]:
    return {
        "topic": row.name,
        "topic_id": row.topic_id,
        "is_internal": row.is_internal,
        "configs": dict(row.configs),
        "partitions": [
            {
                "partition": one.partition,
                "leader": one.leader,
                "start": one.start,
                "end": one.end,
                "bytes": one.size_bytes,
            }
            for one in row.partitions
        ],
    }


# Groups


def run_groups(args: argparse.Namespace) -> int:
    from headrace.kafka_wire.group_lag import group_lags

    with _cluster(args) as cluster:
        found = group_lags(cluster, args.group)
    if args.group is not None and not found.groups:
        raise CommandError(
            f"consumer group {args.group!r} does not exist; headrace broker groups lists the groups"
            + "".join(f"; {note}" for note in found.notes)
        )
    if args.format == "json":
        print_json({"groups": [_group_json(one) for one in found.groups], "notes": found.notes})
        return EXIT_OK
    if args.group is None:
        _print_groups(found.groups, shows_all=args.all)
    else:
        _print_group(found.groups[0], shows_all=args.all)
    _print_notes(found.notes, shows_all=args.all)
    return EXIT_OK


def _print_groups(groups: Sequence[GroupLag], *, shows_all: bool) -> None:
    lag = _number(_total(one.lag for one in groups))
    rows = tuple(map(_group_row, groups))
    header = ("group", "state", "protocol", "members", "partitions", "lag")
    print_report(
        TextReport(f"{count_text(len(groups), 'group')}, lag {lag}", "group", header, rows, (3, 4, 5), is_listing=True),
        shows_all=shows_all,
    )


def _group_row(one: GroupLag) -> ReportRow:
    group = one.group
    cells = (
        group.group_id,
        group.state or "-",
        group.protocol or "-",
        str(len(group.members)),
        str(len(one.partitions)),
        _number(one.lag),
    )
    return ReportRow(cells, ATTENTION if group.error or (one.lag and not group.members) else WELL, one.lag or 0)


def _print_group(found: GroupLag, *, shows_all: bool) -> None:
    group, rows = found.group, found.partitions
    facts = f"{group.state or '-'}, {group.protocol or 'no protocol'}, coordinator {group.coordinator}"
    totals = f"group {group.group_id}: {facts}, lag {_number(found.lag)}"
    members = tuple(
        ReportRow(
            (one.member_id, one.instance_id or "-", one.client_id or "-", one.host or "-", str(len(one.assigned)))
        )
        for one in group.members
    )
    header = ("member", "instance", "client", "host", "partitions")
    print_report(TextReport(totals, "member", header, members, (4,), is_listing=True), shows_all=shows_all)
    partitions = tuple(
        ReportRow(
            (
                row.topic,
                str(row.partition),
                _plain(row.committed),
                _plain(row.end),
                _number(row.lag),
                row.member or "-",
            ),
            weight=row.lag or 0,
        )
        for row in rows
    )
    print_report(
        TextReport(
            count_text(len(partitions), "partition"),
            "partition",
            ("topic", "partition", "committed", "end", "lag", "member"),
            partitions,
            (1, 2, 3, 4),
            is_listing=True,
        ),
        shows_all=shows_all,
    )


def _group_json(found: GroupLag) -> dict[str, Any]:
    group = found.group
    return {
        "group": group.group_id,
        "state": group.state,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol,
        "coordinator": group.coordinator,
        "members": [
            {
                "member_id": one.member_id,
                "instance_id": one.instance_id,
                "client_id": one.client_id,
                "host": one.host,
                "partitions": [{"topic": tp.topic, "partition": tp.partition} for tp in one.assigned],
            }
            for one in group.members
        ],
        "partitions": [
            {
                "topic": row.topic,
                "partition": row.partition,
                "committed": row.committed,
                "end": row.end,
                "lag": row.lag,
                "member_id": row.member,
            }
            for row in found.partitions
        ],
    }


def _total(numbers: Iterable[int | None]) -> int | None:
    """Returns the sum of the known numbers, or None if none is known."""
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def _number(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _plain(offset: int | None) -> str:
    return "-" if offset is None else str(offset)


def _megabytes(number: int | None) -> str:
    return "-" if number is None else f"{number / 1e6:,.1f}"


def _print_notes(notes: Iterable[str], *, shows_all: bool) -> None:
    print_lines([f"note: {note}" for note in notes], shows_all=shows_all)
