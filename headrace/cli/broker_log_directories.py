"""`headrace broker dump` and `verify`: reads the log directories of the bundled broker without the broker."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.command import (
    EXIT_FINDINGS,
    EXIT_OK,
    CommandError,
    add_format_flag,
    add_settings_flags,
    examples,
    print_json,
    settings_from,
)
from headrace.cli.report import add_all_flag, print_lines
from headrace.cli.terminal import steps_shown

if TYPE_CHECKING:
    from headrace.broker.inspect.dump import Dumped, DumpedBatch, DumpedRecord
    from headrace.broker.inspect.verify import PartitionReport

KEY_CHARS_MAX = 60
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
DUMP_CODES = """

exit codes:
  0  no damage in the requested range
  1  damage; the output names each position
  2  failure
"""
VERIFY_CODES = """

Checks:
  batches      each batch is complete and passes its CRC; offsets ascend within a segment
  offsets      no offset is missing, except in a compacted topic
  indexes      positions and timestamps match the batches
  checkpoints  offsets recorded as fsynced exist
  epochs       leader epochs of batches match the partition's epoch file
  producers    the batches in the newest snapshot of idempotent producers exist

A note is a condition that the broker repairs at its start, such as an incomplete end of a log after a crash.

exit codes:
  0  no findings; there may be notes
  1  findings: each names its file and position
  2  failure
"""


def add_verbs(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `dump` and `verify` to the verbs of `headrace broker`."""
    dump = verbs.add_parser(
        "dump",
        help="print the batches and records of a partition",
        description="Prints the batches in the files of a partition. Changes nothing, and may run while the broker "
        "runs. For damaged bytes it prints the position and the offset at which the log continues.",
        epilog=examples(
            "broker dump orders 0",
            "broker dump orders 0 --offset 1500:1520 --records",
            "broker dump orders 0 --directory /backup/broker --format json",
        )
        + DUMP_CODES,
    )
    dump.add_argument("topic", metavar="TOPIC", help="name of the topic")
    dump.add_argument("partition", metavar="PARTITION", type=int, help="number of the partition")
    dump.add_argument(
        "--offset",
        metavar="FIRST[:END]",
        type=_range,
        default=(0, None),
        help="only offsets from FIRST up to, but not including, END (default: all)",
    )
    dump.add_argument("--records", action="store_true", help="print each record: offset, time, key, size, headers")
    _add_flags(dump)
    dump.set_defaults(run_verb=run_dump)
    verify = verbs.add_parser(
        "verify",
        help="check all files of a stopped broker",
        description="Reads every batch in a log directory and compares it with the index, checkpoint and snapshot "
        "files. Changes nothing. Stop the broker first, or verify a copy of the directory. In a copy made while the "
        "broker ran, the last batch of a log may be incomplete; this is reported as a note, not as a finding.",
        epilog=examples("broker verify", "broker verify --directory /backup/broker --format json") + VERIFY_CODES,
    )
    add_all_flag(verify)
    _add_flags(verify)
    verify.set_defaults(run_verb=run_verify)


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--directory",
        type=Path,
        metavar="PATH",
        help="the broker's log directory (default: the directory `broker` in the data directory)",
    )
    add_settings_flags(parser, ())
    add_format_flag(parser)


def _range(text: str) -> tuple[int, int | None]:
    match = re.fullmatch(r"(\d{1,18})(?::(\d{1,18})?)?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected FIRST or FIRST:END as offsets, found {text!r}")
    first, end = int(match[1]), int(match[2]) if match[2] else None
    if end is not None and end <= first:
        raise argparse.ArgumentTypeError(f"expected an END above FIRST, found {text!r}")
    return first, end


def _log_directory(args: argparse.Namespace) -> Path:
    directory: Path = args.directory if args.directory is not None else settings_from(args).data_dir / "broker"
    if not directory.is_dir():
        raise CommandError(
            f"{directory} does not exist; name the broker's log directory with --directory, or its parent with "
            "--data-dir"
        )
    return directory


def run_dump(args: argparse.Namespace) -> int:
    from headrace.broker.inspect.dump import DumpedDamage, dump

    directory = _log_directory(args)
    partition_directory = directory / f"{args.topic}-{args.partition}"
    if args.partition < 0 or not partition_directory.is_dir() or partition_directory.parent != directory:
        raise CommandError(
            f"{directory} has no partition {args.topic}-{args.partition}{_existing_partitions(directory, args.topic)}"
        )
    start, end = args.offset
    damaged = False
    try:
        for found in dump(partition_directory, start, end, with_records=args.records):
            damaged |= isinstance(found, DumpedDamage)
            for line in [json.dumps(_dumped_json(found))] if args.format == "json" else _dumped_lines(found):
                sys.stdout.write(line + "\n")
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CommandError(
            f"{error.filename or partition_directory} cannot be read: {error.strerror or error}"
        ) from error
    return EXIT_FINDINGS if damaged else EXIT_OK


def _existing_partitions(directory: Path, topic: str) -> str:
    """Returns the last part of an error message: a list of the topic's first ten partitions in a log directory, or ""
    if there are none."""
    name = re.compile(rf"{re.escape(topic)}-(\d+)")
    numbers = sorted(int(match[1]) for entry in directory.iterdir() if (match := name.fullmatch(entry.name)))
    return f"; existing partitions: {', '.join(map(str, numbers[:10]))}" if numbers else ""


def _dumped_lines(found: Dumped) -> Iterator[str]:
    from headrace.broker.inspect.dump import DumpedDamage

    if isinstance(found, DumpedDamage):
        yield (
            f"DAMAGE: {found.file} position {found.position}: {found.reason}; {found.byte_count:,} damaged bytes; "
            f"the log continues at offset {found.next_offset}"
        )
        return
    header = found.header
    facts = [f"{header.record_count:,} records", f"{header.size:,} bytes", _time(header.max_timestamp), _codec(header)]
    if header.producer_id >= 0:
        facts.append(f"producer {header.producer_id}:{header.producer_epoch} sequence {header.base_sequence}")
    facts += [*_marks(found), f"epoch {header.leader_epoch}", f"{found.file}:{found.position}"]
    yield f"{header.base_offset}-{header.last_offset}  " + "  ".join(facts)
    if found.undecoded_reason:
        yield f"  records not shown: {found.undecoded_reason}"
    for record in found.records or ():
        yield _record_line(record)


def _record_line(record: DumpedRecord) -> str:
    size = "no value" if record.value_bytes is None else f"{record.value_bytes:,} bytes"
    names = f"  headers {', '.join(record.header_names)}" if record.header_names else ""
    return f"  {record.offset}  {_time(record.timestamp_ms)}  key {_key(record.key)}  {size}{names}"


def _key(key: bytes | None) -> str:
    if key is None:
        return "-"
    try:
        text = json.dumps(key.decode(), ensure_ascii=False)
        shown = text if text.isprintable() else key.hex()
    except UnicodeDecodeError:
        shown = key.hex()
    return shown if len(shown) <= KEY_CHARS_MAX else f"{shown[:KEY_CHARS_MAX]}… ({len(key):,} bytes)"


def _marks(found: DumpedBatch) -> list[str]:
    from headrace.kafka_wire.record_batch import CONTROL, DELETE_HORIZON, LOG_APPEND_TIME, TRANSACTIONAL

    attributes = found.header.attributes
    named = (
        (TRANSACTIONAL, "transactional"),
        (CONTROL, f"control {found.marker}".rstrip()),
        (LOG_APPEND_TIME, "log append time"),
        (DELETE_HORIZON, "delete horizon"),
    )
    return [name for bit, name in named if attributes & bit]


def _codec(header: Any) -> str:
    from headrace.kafka_wire.record_batch import CODEC_MASK

    number = header.attributes & CODEC_MASK
    return CODECS[number] if number < len(CODECS) else f"codec {number}"


def _time(timestamp_ms: int) -> str:
    try:
        return (
            datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        )
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"


def _dumped_json(found: Dumped) -> dict[str, Any]:
    from headrace.broker.inspect.dump import DumpedDamage

    if isinstance(found, DumpedDamage):
        return {
            "kind": "damage",
            "file": found.file,
            "position": found.position,
            "bytes": found.byte_count,
            "next_offset": found.next_offset,
            "reason": found.reason,
        }
    header = found.header
    row: dict[str, Any] = {
        "kind": "batch",
        "file": found.file,
        "position": found.position,
        "bytes": header.size,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "max_timestamp_ms": header.max_timestamp,
        "codec": _codec(header),
        "leader_epoch": header.leader_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "marks": _marks(found),
    }
    if found.undecoded_reason:
        row["unopened"] = found.undecoded_reason
    if found.records is not None:
        row["content"] = [
            {
                "offset": record.offset,
                "timestamp_ms": record.timestamp_ms,
                "key": None if record.key is None else _key_json(record.key),
                "value_bytes": record.value_bytes,
                "headers": list(record.header_names),
            }
            for record in found.records
        ]
    return row


def _key_json(key: bytes) -> str | dict[str, str]:
    """Returns a record key for JSON: text unchanged, binary keys in hexadecimal."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return {"hex": key.hex()}


def run_verify(args: argparse.Namespace) -> int:
    from headrace.broker.data_directory import exclude_brokers
    from headrace.broker.errors import BrokerError, DataDirectoryInUse
    from headrace.broker.inspect.verify import verify

    directory = _log_directory(args)
    verified = []
    try:
        with exclude_brokers(directory), steps_shown() as show:
            for one in verify(directory, lambda where: show(f"reading {where}")):
                verified.append(one)
    except DataDirectoryInUse as error:
        raise CommandError(
            f"a broker runs on {directory}; stop it, or name a copy of the directory with --directory"
        ) from error
    except BrokerError as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        raise CommandError(f"{error.filename or directory} cannot be read: {error.strerror or error}") from error
    if args.format == "json":
        print_json({"directory": str(directory), "partitions": [_verified_json(one) for one in verified]})
    else:
        _print_verified(directory, verified, shows_all=args.all)
    return EXIT_OK if all(one.is_intact for one in verified) else EXIT_FINDINGS


def _print_verified(directory: Path, verified: list[PartitionReport], *, shows_all: bool) -> None:
    partitions = verified[1:]
    findings = sum(one.omitted + sum(not finding.is_note for finding in one.findings) for one in verified)
    print(
        f"{directory}: {len(partitions):,} partitions, {sum(one.segments for one in partitions):,} segments, "
        f"{sum(one.batches for one in partitions):,} batches, {sum(one.records for one in partitions):,} records, "
        f"{sum(one.size_bytes for one in partitions) / 1e6:,.1f} MB: {findings:,} findings"
    )
    found = [
        (finding.is_note, f"{one.name}: {finding.check}: {finding.where}: {finding.message}")
        for one in verified
        for finding in one.findings
    ]
    found += [(False, f"{one.name}: and {one.omitted:,} more, not listed") for one in verified if one.omitted]
    print_lines([f"FINDING: {text}" for is_note, text in found if not is_note], shows_all=shows_all)
    print_lines([f"note: {text}" for is_note, text in found if is_note], shows_all=shows_all)


def _verified_json(one: PartitionReport) -> dict[str, Any]:
    return {
        "partition": one.name,
        "segments": one.segments,
        "batches": one.batches,
        "records": one.records,
        "bytes": one.size_bytes,
        "log_start_offset": one.log_start_offset,
        "log_end_offset": one.log_end_offset,
        "findings": [
            {"check": each.check, "where": each.where, "message": each.message, "is_note": each.is_note}
            for each in one.findings
        ],
        "more_findings": one.omitted,
    }
