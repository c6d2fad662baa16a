"""No message makes a table unreadable: a task loads hostile values, and Spark queries them.

Values that must be quarantined are also written into tables directly, to verify the reason: if a release of Spark reads
such a value, the test fails, and the value no longer needs to be rejected.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace.avro_codec.encode import encode_bytes, encode_long
from headrace.avro_codec.readable import TIMESTAMP_MS_MAX
from headrace.avro_schema import frame, parse_schema
from headrace.hive_ddl.executors.spark import SparkExecutor
from headrace.hive_ddl.names import quote_identifier
from headrace.hive_ddl.plan import plan_partitions, plan_table
from headrace.hive_ddl.table import desired_table, local_location
from headrace.kafka_wire.cluster import FetchSlice
from headrace.kafka_wire.record_batch import NO_HEADERS, Record
from headrace.kafka_wire.security import KafkaSecurity
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader import task as task_module
from headrace.loader.build import current_build
from headrace.loader.load_schema import EMPTY, fold, load_schema_with_kafka
from headrace.loader.project.quarantine import SCHEMA as QUARANTINE_SCHEMA
from headrace.loader.task import run_work_unit
from headrace.loader.work_unit import FileKind, OffsetRange, TaskSettings, TopicPlan, UnitResult, WorkUnit
from headrace.loader.write.container import ContainerFormat
from support.hive.hive_engines import SparkEngine
from support.loader.loader_samples import POLICY

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("shared_spark")]

DATABASE = "unreadable"
SYNC = bytes(range(16))
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
DATE = {"type": "int", "logicalType": "date"}


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def unscaled(number: int) -> bytes:
    return encode_bytes(number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True))


@dataclass(frozen=True)
class Column:
    """A column, a harmless value, and hostile ones: those that are rejected, and those with their text in Spark."""

    kind: Any
    fine: bytes
    rejected: tuple[bytes, ...] = ()
    loaded: tuple[tuple[bytes, str | None], ...] = ()


FIRST_MS, LAST_MS = encode_long(-TIMESTAMP_MS_MAX), encode_long(TIMESTAMP_MS_MAX)
BEYOND_MS = (encode_long(TIMESTAMP_MS_MAX + 1), encode_long(-TIMESTAMP_MS_MAX - 1), encode_long(2**63 - 1))
COLUMNS = {
    "price": Column(
        decimal(9, 2),
        unscaled(150),
        rejected=(
            encode_bytes(b""),
            encode_bytes(b"\x7f" * 300_000),
            unscaled(10**9),
            unscaled(-(10**9)),
            unscaled(-(10**300)),
            encode_bytes(b"\x7f" * 1_024),
        ),
        loaded=(
            (unscaled(10**9 - 1), "9999999.99"),
            (unscaled(-(10**9) + 1), "-9999999.99"),
            (unscaled(0), "0.00"),
            (encode_bytes(b"\x00" * 40 + b"\x01"), "0.01"),
            (encode_bytes(b"\xff" * 40), "-0.01"),
        ),
    ),
    "total": Column(
        decimal(38, 38),
        unscaled(1),
        rejected=(unscaled(10**38), unscaled(-(10**38))),
        loaded=((unscaled(10**38 - 1), "0." + "9" * 38), (unscaled(-(10**38) + 1), "-0." + "9" * 38)),
    ),
    "at": Column(
        MILLIS,
        encode_long(1_357_000_000_000),
        rejected=BEYOND_MS,
        loaded=((LAST_MS, "+294247-01-10 04:00:54.775"), (FIRST_MS, "-290302-12-10 19:59:05.225")),
    ),
    "day": Column(
        DATE,
        encode_long(15_000),
        loaded=((encode_long(2**31 - 1), "+5881580-07-11"), (encode_long(-(2**31)), "-5877520-03-03")),
    ),
    "maybe": Column(["null", decimal(5, 0)], b"\x00", rejected=(b"\x02\x00",), loaded=((b"\x02\x02\x05", "5"),)),
    "listed": Column(
        {"type": "array", "items": MILLIS},
        b"\x00",
        rejected=tuple(b"\x04\x00" + beyond + b"\x00" for beyond in BEYOND_MS),
    ),
    "mapped": Column(
        {"type": "map", "values": ["null", decimal(9, 2)]},
        b"\x00",
        rejected=(b"\x02\x02k\x02\x00\x00", b"\x04\x02j\x00\x02k\x02" + unscaled(10**12) + b"\x00"),
        loaded=((b"\x04\x02k\x00\x02k\x02" + unscaled(10**9 - 1) + b"\x00", '{"k":9999999.99}'),),
    ),
    "nested": Column(
        {"type": "record", "name": "Nested", "fields": [{"name": "x", "type": MILLIS}]},
        b"\x00",
        rejected=BEYOND_MS,
    ),
    "ratio": Column(
        "double", b"\x00" * 8, loaded=((b"\x00" * 6 + b"\xf8\x7f", "NaN"), (b"\x00" * 6 + b"\xf0\xff", "-Infinity"))
    ),
    "text": Column(
        "string",
        b"\x00",
        rejected=(encode_bytes(b"\xff"), encode_bytes(b"\xed\xa0\x80")),
        loaded=((encode_bytes("\0\U0010ffff".encode()), "\0\U0010ffff"),),
    ),
    "micros": Column(
        {"type": "long", "logicalType": "timestamp-micros"},
        b"\x00",
        loaded=((encode_long(2**63 - 1), str(2**63 - 1)),),
    ),
    "nothings": Column({"type": "array", "items": "null"}, b"\x00", loaded=((encode_long(65_536) + b"\x00", None),)),
}
CHOICE = {
    "choice": Column(
        ["null", "string", decimal(9, 2)],
        b"\x00",
        rejected=(b"\x04\x00", b"\x04" + unscaled(10**9)),
        loaded=((b"\x02\x00", None),),
    ),
}
"""A union of several branches, which is never copied unchanged."""

ABSURD_RECORD_TIMES = (1000, -1, -(2**63), 2**63 - 1, 253_402_300_800_000)

Message = tuple[str, bytes | None, bytes]
"""The column with a hostile value, the value if it is rejected, and the body."""


def event(*fields: tuple[str, Any]) -> str:
    listed = [{"name": name, "type": kind} for name, kind in fields]
    return json.dumps({"type": "record", "name": "Event", "fields": listed})


def messages(columns: Mapping[str, Column]) -> list[Message]:
    """Returns each hostile value of each column in its own message, with harmless messages in between."""
    found: list[Message] = []

    def add(name: str, rejected: bytes | None, hostile: Mapping[str, bytes]) -> None:
        values = [hostile.get(other, column.fine) for other, column in columns.items()]
        found.append((name, rejected, encode_long(len(found)) + b"".join(values)))

    for name, column in columns.items():
        for value in column.rejected:
            add("", None, {})
            add(name, value, {name: value})
        for value, _ in column.loaded:
            add(name, None, {name: value})
    return found


class MemoryLog:
    """A fake cluster; its records come from `read_records`."""

    def __init__(self, bootstrap_servers: str, timeout_s: float, *, security: KafkaSecurity) -> None:
        pass

    def prefetch(self, *where: object, **named: object) -> None:
        pass

    def expect_topics(self, topics: object) -> None:
        pass

    def fetch(self, *where: object, **named: object) -> FetchSlice:
        raise AssertionError("records are given directly")

    def close(self) -> None:
        pass


def load(directory: Path, monkeypatch: pytest.MonkeyPatch, plan: TopicPlan, sent: Sequence[Message]) -> UnitResult:
    """Runs a task over the messages, whose records also have absurd times."""
    bodies = [frame(1, body) for _, _, body in sent]
    records: list[Record] = [
        (offset, ABSURD_RECORD_TIMES[offset % len(ABSURD_RECORD_TIMES)], b"\xff", value, NO_HEADERS)
        for offset, value in enumerate(bodies)
    ]

    def read_records(fetch: object, offsets: OffsetRange, take: Any, tally: Any, options: object) -> None:
        tally.mark(records)
        tally.count(records)
        take(records)

    monkeypatch.setattr(task_module, "KafkaCluster", MemoryLog)
    monkeypatch.setattr(task_module, "read_range", read_records)
    settings = TaskSettings(
        bootstrap_servers="memory:1",
        staging=str(directory),
        file_bytes_target=1 << 30,
    )
    ranges = (OffsetRange(TopicPartition(plan.topic, 0), 0, len(records)),)
    return run_work_unit(WorkUnit("w", 0, ranges, {plan.topic: plan}, settings, current_build()))


class Tables:
    def __init__(self, session: SparkSession, warehouse: Path) -> None:
        self.session = session
        self.executor = SparkExecutor(session)
        self.warehouse = warehouse
        self.executor.ensure_database(DATABASE)

    def make(self, name: str, schema_text: str, files: dict[str, list[bytes]]) -> str:
        """Creates a table of these files, by partition path."""
        table = desired_table(
            database=DATABASE,
            name=name,
            location=local_location(self.warehouse / name),
            topic=name,
            subject=f"{name}-value",
            version=1,
            schema_text=schema_text,
            revision="1-test",
            partition_columns=("dt",),
        )
        for op in plan_table(None, table):
            self.executor.execute(op)
        partitions = {}
        for time_partition, contents in files.items():
            directory = self.warehouse / name / time_partition
            directory.mkdir(parents=True)
            for number, content in enumerate(contents):
                (directory / f"{number}.avro").write_bytes(content)
            partitions[(time_partition.removeprefix("dt="),)] = local_location(directory)
        for op in plan_partitions(table, {}, partitions):
            self.executor.execute(op)
        return f"{DATABASE}.{name}"

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.session.sql(query).collect()]


@pytest.fixture(scope="module")
def tables(shared_engines: tuple[SparkEngine, object], tmp_path_factory: pytest.TempPathFactory) -> Tables:
    return Tables(shared_engines[0].session, tmp_path_factory.mktemp("unreadable") / "warehouse")


def staged(directory: Path, result: UnitResult, kind: FileKind) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for file in result.files:
        if file.kind is kind:
            found.setdefault(file.time_partition, []).append((directory / file.path).read_bytes())
    return found


@pytest.mark.parametrize("way", ["copied", "rewritten"])
def test_hostile_values_leave_the_table_readable(
    tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    columns = COLUMNS if way == "copied" else COLUMNS | CHOICE
    fields = [("id", "int"), *((name, column.kind) for name, column in columns.items())]
    writer = event(*fields)
    state = EMPTY
    for version, text in enumerate([writer] if way == "copied" else [event(("first", "string")), writer], 1):
        state = fold(state, version, parse_schema(text))
    sent = messages(columns)
    policy = dataclasses.replace(POLICY, partition_by="day", kafka_column="full", time_fields=("at",))
    result = load(tmp_path, monkeypatch, TopicPlan(f"events_{way}", state.text, {1: writer}, policy), sent)
    assert result.error == "" and result.ranges[0].error == ""
    rejected = [number for number, (_, value, _) in enumerate(sent) if value is not None]
    schema_text = load_schema_with_kafka(state.text, "full")
    table = tables.make(f"events_{way}", schema_text, staged(tmp_path, result, FileKind.DATA))
    bad = tables.make(f"bad_{way}", QUARANTINE_SCHEMA, staged(tmp_path, result, FileKind.QUARANTINE))
    # Spark's texts of every column of every row.
    names = [name for name, kind in tables.session.table(table).dtypes]
    texts = [f"cast({quote_identifier(name)} AS string) AS t{at}" for at, name in enumerate(names)]
    rows = tables.rows(f"SELECT {', '.join(texts)} FROM {table}")
    by_id = {int(row[names.index("id")]): dict(zip(names, row, strict=True)) for row in rows}
    assert sorted(by_id) == [number for number in range(len(sent)) if number not in rejected]
    for name in ("price", "total", "at", "day", "maybe", "ratio", "text", "micros"):
        expected = [text for _, text in COLUMNS[name].loaded]
        found = [
            by_id[number][name] for number, (column, value, _) in enumerate(sent) if column == name and value is None
        ]
        assert found == expected, name
    assert tables.rows(f"SELECT count(kafka.timestamp), count(*) FROM {table} WHERE kafka.`offset` % 5 <> 0")[0][0] == 0
    codes = tables.rows(f"SELECT `offset`, timestamp, code, reason, length(value) FROM {bad} ORDER BY `offset`")
    assert [code[0] for code in codes] == rejected
    assert {code[1] for code in codes} <= set(ABSURD_RECORD_TIMES)
    for number, _, code, reason, length in codes:
        column = sent[number][0]
        assert code == ("malformed" if column == "text" else "unreadable")
        assert column == "text" or reason.startswith(column), reason
        assert length == len(sent[number][2]) + 5


REFUSED_AT_TOP = {
    "a decimal of no bytes": (decimal(9, 2), encode_bytes(b""), "Zero length BigInteger"),
    "a timestamp after the last": (MILLIS, BEYOND_MS[0], "long overflow"),
    "a timestamp before the first": (MILLIS, BEYOND_MS[1], "long overflow"),
}


def table_of(tables: Tables, name: str, row: bytes, *fields: tuple[str, Any]) -> str:
    """Creates a table of one row, without the checks of the loader."""
    text = fold(EMPTY, 1, parse_schema(event(*fields))).text
    container = ContainerFormat(text, "null", SYNC)
    content = container.header({}) + container.block([row])
    return tables.make(name.replace(" ", "_"), text, {"dt=2026-01-31": [content]})


def test_rejected_decimals_would_be_null(tables: Tables) -> None:
    price = decimal(5, 2)
    prices = unscaled(99_999) + unscaled(-99_999) + unscaled(100_000) + unscaled(-100_000)
    row = prices + b"\x04" + unscaled(1) + unscaled(100_000) + b"\x00"
    fields = [(name, price) for name in "abcd"]
    table = table_of(tables, "more digits", row, *fields, ("listed", {"type": "array", "items": price}))
    (found,) = tables.rows(f"SELECT cast(a AS string), cast(b AS string), c, d, to_json(listed) FROM {table}")
    assert found == ("999.99", "-999.99", None, None, "[0.01,null]")


@pytest.mark.parametrize("name", REFUSED_AT_TOP)
def test_rejected_values_would_fail_queries(tables: Tables, name: str) -> None:
    kind, value, failure = REFUSED_AT_TOP[name]
    table = table_of(tables, name, value, ("c", kind))
    with pytest.raises((PySparkException, Py4JJavaError), match=failure):
        tables.rows(f"SELECT cast(c AS string) FROM {table}")
