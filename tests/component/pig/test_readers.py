"""Results of Pig for every type, and for every row after every change: its columns of the tables in docs/hive.md."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from headrace.avro_schema import Field, Schema, Type, parse_schema
from headrace.hive_ddl.executors.session import close_session, open_session
from headrace.hive_ddl.executors.spark import SparkExecutor
from headrace.hive_ddl.table import local_location
from support.hive.golden_results import check_golden_results
from support.hive.hive_cases import (
    HISTORIES,
    RECORDS,
    TYPES,
    VERSIONS,
    columns_of,
    histories_message,
    histories_schema,
    types_message,
    types_schema,
)
from support.hive.hive_engines import SPARK, SparkEngine
from support.hive.hive_topics import DATABASE, FoldedTopic, find_mismatches
from support.hive.pig import METASTORE, WITHOUT_PRUNING, Pig, PigRefused, by_schema, by_table, normalize_pig_value
from support.running_service import Service

pytestmark = pytest.mark.pig

AVRO_STORAGE = "pig"
HCATALOG = "pig_hcatalog"


@pytest.fixture(scope="module")
def metastore(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data = tmp_path_factory.mktemp("metastore")
    service = Service(["headrace.pipeline.metastore_server", "--data-dir", str(data), "--listen", "127.0.0.1:0"])
    yield service.addresses["metastore"]
    service.stop()


@pytest.fixture(scope="module")
def folded(metastore: str, tmp_path_factory: pytest.TempPathFactory) -> Folded:
    """The topics of the tables in docs/hive.md, in the metastore and with their schemas next to the data."""
    directory = tmp_path_factory.mktemp("folded")
    session = open_session(
        app_name="tests",
        master="local[1]",
        metastore_uri=metastore,
        data_dir=directory / "data",
        warehouse_uri=local_location(directory / "warehouse"),
        extra={"sql.shuffle.partitions": "1"},
        short_lived=True,
    )
    try:
        engines = [SparkEngine(SPARK, SparkExecutor(session), session)]
        types = FoldedTopic("types", directory / "types", engines)
        types.evolve(types_schema(TYPES), types_message(TYPES))
        histories = FoldedTopic("histories", directory / "histories", engines)
        for version in range(VERSIONS):
            histories.evolve(histories_schema(version), histories_message(version))
        records = [
            FoldedTopic(f"record_{number}", directory / f"record{number}", engines) for number in range(len(RECORDS))
        ]
        for topic, record in zip(records, RECORDS, strict=True):
            for version in range(len(record.versions)):
                topic.evolve(record.schema(version), {"c": f"v{version + 1}"})
    finally:
        close_session(session)
    for topic in (types, histories, *records):
        topic.publish_schema()
    return Folded(types, histories, records)


@dataclass(frozen=True)
class Folded:
    types: FoldedTopic
    histories: FoldedTopic
    records: Sequence[FoldedTopic]


@dataclass(frozen=True)
class Reader:
    """Pig with one of its loaders; `name` is that of its golden results."""

    name: str
    pig: Pig
    properties: Mapping[str, str]

    @property
    def has_logical_types(self) -> bool:
        return self.name == HCATALOG

    def read_columns(
        self, topic: FoldedTopic, fields: Sequence[Field], places: Sequence[str] = (), before: str = ""
    ) -> tuple[dict[str, str], list[list[Any]]]:
        """Returns the types of columns by lower-case name, and rows of `places` and some columns, in order."""
        load = by_table(f"{DATABASE}.{topic.table}") if self.name == HCATALOG else by_schema(topic.directory)
        names = [field.name.lower() if self.name == HCATALOG else field.name for field in fields]
        kinds, rows = self.pig.read_columns(load, [*places, *names], before, **self.properties)
        return {name.lower(): kind for name, kind in kinds.items()}, sorted(rows, key=lambda row: row[:1])

    def schema(self, topic: FoldedTopic) -> Schema:
        """Returns the load schema as this loader reads it."""
        text = topic.load_schema.text
        return parse_schema(text if self.has_logical_types else json.dumps(without_logical_types(json.loads(text))))

    def mismatches(self, topic: FoldedTopic) -> list[str]:
        schema = self.schema(topic)
        _, rows = self.read_columns(topic, topic.fields, ("kafka.$0", "kafka.$1"), WITHOUT_PRUNING)

        def normalize(kind: Type, value: Any, should: Any) -> Any:
            return normalize_pig_value(schema, kind, value)

        # HCatLoader takes the fields of a date from the calendar of Hive 2.3, and timestamps by their instant.
        julian_types = ("date",) if self.name == HCATALOG else ()
        return find_mismatches([tuple(row) for row in rows], self.name, schema, topic.sent, normalize, julian_types)


def without_logical_types(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: without_logical_types(value) for key, value in node.items() if key != "logicalType"}
    return [without_logical_types(item) for item in node] if isinstance(node, list) else node


@pytest.fixture(params=[AVRO_STORAGE, HCATALOG])
def reader(request: pytest.FixtureRequest, metastore: str) -> Reader:
    if request.param == HCATALOG:
        properties = {METASTORE: metastore}
        return Reader(HCATALOG, request.getfixturevalue("hcatalog"), properties)
    return Reader(AVRO_STORAGE, request.getfixturevalue("pig"), {})


def test_every_type_plain_and_nested(folded: Folded, reader: Reader) -> None:
    topic, schema = folded.types, reader.schema(folded.types)
    assert reader.mismatches(topic) == []
    kinds, (row,) = reader.read_columns(topic, topic.fields)
    values = [normalize_pig_value(schema, field.type, value) for field, value in zip(topic.fields, row, strict=True)]
    results = {}
    for number, case in enumerate(TYPES):
        at_top, in_array, in_map, in_record = values[4 * number : 4 * number + 4]
        is_same = [at_top, at_top, at_top] == [*in_array, *in_map.values(), *in_record.values()]
        results[case.name] = {"type": kinds[f"c{number}"], "value": at_top, "nested": is_same}
    check_golden_results(reader.name, "types", results)


def test_old_and_new_partitions_are_readable_after_every_change(folded: Folded, reader: Reader) -> None:
    """The golden results come from a script that uses some columns; Pig passes these to Avro without their aliases.
    With the setting of docs/tables.md every row is correct.
    """
    topics = (folded.histories, *folded.records)
    assert [wrong for topic in topics for wrong in reader.mismatches(topic)] == []
    kinds, rows, refused = with_refusals(reader, folded.histories)
    results: dict[str, dict[str, Any]] = {}
    for number, history in enumerate(HISTORIES):
        fields = folded.histories.fields
        own = {fields[at].name: name for at, name in columns_of(fields, number).items()}
        result: dict[str, Any] = {"columns": {own[name]: kinds[name.lower()] for name in own}}
        missing = [own[name] for name in own if name in refused]
        if missing:
            result["refused"] = f"missing required field {missing[0]}"
        else:
            result["rows"] = [[row[name] for name in own] for row in rows[: len(history.versions)]]
        results[history.name] = result
    for topic, record in zip(folded.records, RECORDS, strict=True):
        kinds, rows, refused = with_refusals(reader, topic)
        assert not refused
        results[record.name] = {"columns": {"c": kinds["c"]}, "rows": [[row["c"]] for row in rows]}
    check_golden_results(reader.name, "histories", results)


def with_refusals(reader: Reader, topic: FoldedTopic) -> tuple[dict[str, str], list[dict[str, Any]], set[str]]:
    """Returns the types of columns, rows by column, and the columns that make Pig refuse all rows."""
    schema = reader.schema(topic)
    refused: set[str] = set()
    while True:
        fields_read = [field for field in topic.fields if field.name not in refused]
        try:
            kinds, rows = reader.read_columns(topic, fields_read)
        except PigRefused as error:
            reason = re.search(r"^AvroTypeException: .*missing required field (\w+)$", str(error))
            assert reason is not None, error
            assert reason[1] not in refused
            refused.add(reason[1])
        else:
            results = [
                {
                    field.name: normalize_pig_value(schema, field.type, value)
                    for field, value in zip(fields_read, row, strict=True)
                }
                for row in rows
            ]
            return kinds, results, refused
