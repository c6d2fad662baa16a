"""Pig reads the results of loads: files by the published schema, tables by HCatalog."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from subprocess import CompletedProcess

import fastavro
import pytest

from headrace.avro_schema import frame
from support.hive.pig import METASTORE, Pig, by_schema, by_table
from support.loader.load_world import FIELDS, FIRST_MS, NOTE, LoadWorld, event_schema

pytestmark = pytest.mark.pig

TOPIC = "orders"
PLAIN = "plain"
RETYPED = "sibling"
COMPACTED = "compacted"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadWorld]:
    """Topics with files of two versions: one gets an additional column, one changes the type of a column. One is
    compacted and then gets further files.
    """
    world = LoadWorld(tmp_path_factory.mktemp("pig"))
    retyped = [{**one, "type": "string"} if one["name"] == "id" else one for one in FIELDS]
    world.registry.set_compatibility("NONE", f"{RETYPED}-value")
    for topic in (TOPIC, PLAIN, RETYPED, COMPACTED):
        world.produce(topic, 30)
    check_succeeded(world.load())
    for topic, second in ((TOPIC, [*FIELDS, NOTE]), (PLAIN, FIELDS), (COMPACTED, FIELDS)):
        world.produce(topic, 30, fields=second)
    produce_retyped(world, RETYPED, retyped)
    check_succeeded(world.load())
    check_succeeded(world.command("compact", COMPACTED, *world.flags()[:2], *world.flags()[4:]))
    world.produce(COMPACTED, 30, fields=[*FIELDS, NOTE])
    check_succeeded(world.load())
    yield world
    world.close()


def check_succeeded(done: CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stdout + done.stderr


def produce_retyped(world: LoadWorld, topic: str, fields: list[dict[str, object]]) -> None:
    """Produces messages in which `id` is a string, which gets its own column."""
    schema = event_schema(topic, fields)
    registered = world.registry.register(f"{topic}-value", json.dumps(schema))
    for number in range(3):
        body = io.BytesIO()
        message = {"id": f"x{number}", "who": "w", "timestamp": FIRST_MS}
        fastavro.schemaless_writer(body, fastavro.parse_schema(schema), message)
        world.producer.send(topic, value=frame(registered.schema_id, body.getvalue()), partition=0).get(30)


def by_path(world: LoadWorld, topic: str, generated: str) -> str:
    directory = world.warehouse / topic
    return f"t = LOAD {by_schema(directory)};\nresult = FOREACH t GENERATE {generated};"


def as_line(*values: object) -> str:
    return f"({','.join('' if value is None else str(value) for value in values)})"


@pytest.mark.parametrize("topic", [TOPIC, PLAIN])
def test_files_of_all_versions_are_read_by_the_published_schema(world: LoadWorld, pig: Pig, topic: str) -> None:
    has_note = topic == TOPIC
    generated = "kafka.$0, kafka.$1, id, who" + (", note" if has_note else "")
    expected = sorted(
        as_line(*at, row["id"], row["who"], *([row.get("note", "none")] if has_note else []))
        for at, row in world.produced[topic].rows.items()
    )
    assert pig.dump(by_path(world, topic, generated)) == expected


def test_column_of_changed_type_is_read(world: LoadWorld, pig: Pig) -> None:
    assert pig.dump(by_path(world, RETYPED, "id, id__string")) == retyped_rows(world)


def retyped_rows(world: LoadWorld) -> list[str]:
    return sorted(
        [as_line(row["id"], None) for row in world.produced[RETYPED].rows.values()]
        + [as_line(None, f"x{number}") for number in range(3)]
    )


def test_compacted_files_are_read_by_listed_paths(world: LoadWorld, pig: Pig) -> None:
    """As documented in docs/tables.md: a rewritten time partition is in another directory, which no glob pattern
    matches.
    """
    schema = world.warehouse / COMPACTED / "_schema" / "current.avsc"
    script = (
        f"t = LOAD '{','.join(paths(world, COMPACTED))}' USING AvroStorage('', '-f {schema}');\n"
        "result = FOREACH t GENERATE kafka.$0, kafka.$1, id, note;"
    )
    rows = world.produced[COMPACTED].rows.items()
    assert pig.dump(script) == sorted(as_line(*at, row["id"], row.get("note", "none")) for at, row in rows)


def paths(world: LoadWorld, topic: str) -> list[str]:
    listed = world.command("files", topic, *world.flags()[:2], "--format", "paths")
    check_succeeded(listed)
    return listed.stdout.split()


@pytest.mark.parametrize(
    ("topic", "columns", "has_note"),
    [
        pytest.param(TOPIC, "id, note, hr", True, id="evolved"),
        pytest.param(PLAIN, "id, who, hr", False, id="plain"),
        pytest.param(COMPACTED, "id, note, hr", True, id="compacted"),
    ],
)
def test_tables_are_read_by_hcatalog(world: LoadWorld, hcatalog: Pig, topic: str, columns: str, has_note: bool) -> None:
    # Partitions of a compacted table point to rewritten generations.
    assert any("/_g" in path for path in paths(world, topic)) == (topic == COMPACTED)
    lines = by_hcatalog(world, hcatalog, topic, f"kafka.$0, kafka.$1, {columns}")
    rows = world.produced[topic].rows.items()
    assert lines == sorted(
        as_line(*at, row["id"], row.get("note", "none") if has_note else row["who"], hour(row)) for at, row in rows
    )


def test_column_of_changed_type_is_read_by_hcatalog(world: LoadWorld, hcatalog: Pig) -> None:
    assert by_hcatalog(world, hcatalog, RETYPED, "id, id__string") == retyped_rows(world)


def by_hcatalog(world: LoadWorld, hcatalog: Pig, topic: str, generated: str) -> list[str]:
    script = (
        f"t = LOAD {by_table(f'headrace.{topic}')};\n"
        "day = FILTER t BY dt == '2026-01-01';\n"
        f"result = FOREACH day GENERATE {generated};"
    )
    return hcatalog.dump(script, **{METASTORE: world.addresses["metastore"]})


def hour(row: dict[str, int]) -> str:
    return f"{row['timestamp'] // 3_600_000 % 24:02}"
