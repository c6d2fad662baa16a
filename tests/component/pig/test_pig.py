"""Pig over what loads leave behind: files by the published schema, tables by HCatalog."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import fastavro
import pytest

from headrace.avro_schema import frame
from load_world import FIELDS, FIRST_MS, NOTE, LoadWorld, event_schema
from pig import Pig

pytestmark = pytest.mark.pig

TOPIC = "orders"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadWorld]:
    """A topic with files of two versions, of which one has a column more and one a column of another type."""
    world = LoadWorld(tmp_path_factory.mktemp("pig"))
    retyped = [{**one, "type": "string"} if one["name"] == "id" else one for one in FIELDS]
    for topic, second in ((TOPIC, [*FIELDS, NOTE]), ("plain", FIELDS), ("sibling", [*FIELDS, NOTE])):
        if topic == "sibling":
            world.registry.set_compatibility("NONE", "sibling-value")
        world.produce(topic, 30)
        done = world.load()
        assert done.returncode == 0, done.stdout + done.stderr
        if topic != "sibling":
            world.produce(topic, 30, fields=second)
        else:
            produce_retyped(world, topic, retyped)
        done = world.load()
        assert done.returncode == 0, done.stdout + done.stderr
    yield world
    world.close()


def produce_retyped(world: LoadWorld, topic: str, fields: list[dict[str, object]]) -> None:
    """`id` is a text from here on, which has a column of its own."""
    schema = event_schema(topic, fields)
    registered = world.registry.register(f"{topic}-value", json.dumps(schema))
    for number in range(3):
        body = io.BytesIO()
        message = {"id": f"x{number}", "who": "w", "timestamp": FIRST_MS}
        fastavro.schemaless_writer(body, fastavro.parse_schema(schema), message)
        world.producer.send(topic, value=frame(registered.schema_id, body.getvalue()), partition=0).get(30)


@pytest.fixture(scope="module")
def pig(tmp_path_factory: pytest.TempPathFactory) -> Pig:
    return Pig(tmp_path_factory.mktemp("pig") / "avro", "pig")


def by_path(world: LoadWorld, topic: str, generated: str) -> str:
    folder = world.warehouse / topic
    return (
        f"t = LOAD '{folder}/dt=*/hr=*' USING AvroStorage('', '-f {folder}/_schema/current.avsc');\n"
        f"result = FOREACH t GENERATE {generated};"
    )


def as_line(*values: object) -> str:
    return f"({','.join('' if value is None else str(value) for value in values)})"


@pytest.mark.parametrize("topic", [TOPIC, "plain"])
def test_files_of_all_versions_are_read_by_the_published_schema(world: LoadWorld, pig: Pig, topic: str) -> None:
    has_note = topic == TOPIC
    generated = "kafka.$0, kafka.$1, id, who" + (", note" if has_note else "")
    expected = sorted(
        as_line(*at, row["id"], row["who"], *([row.get("note", "none")] if has_note else []))
        for at, row in world.produced[topic].rows.items()
    )
    assert pig.dump(by_path(world, topic, generated)) == expected


def test_a_column_that_opened_beside_another_is_read(world: LoadWorld, pig: Pig) -> None:
    lines = pig.dump(by_path(world, "sibling", "id, id__string"))
    assert lines == sorted(
        [as_line(row["id"], None) for row in world.produced["sibling"].rows.values()]
        + [as_line(None, f"x{number}") for number in range(3)]
    )


def test_compacted_files_are_read_by_the_paths_that_headrace_files_names(world: LoadWorld, pig: Pig) -> None:
    """As docs/tables.md says: a bucket that was rewritten lives in another folder, which no pattern finds."""
    done = world.command("compact", "plain", *world.flags()[:2], *world.flags()[4:])
    assert done.returncode == 0, done.stdout + done.stderr
    listed = world.command("files", "plain", *world.flags()[:2], "--format", "paths")
    assert listed.returncode == 0, listed.stdout + listed.stderr
    paths = listed.stdout.split()
    assert any("/_g" in path for path in paths)
    schema = world.warehouse / "plain" / "_schema" / "current.avsc"
    script = (
        f"t = LOAD '{','.join(paths)}' USING AvroStorage('', '-f {schema}');\n"
        "result = FOREACH t GENERATE kafka.$0, kafka.$1, id;"
    )
    expected = sorted(as_line(*at, row["id"]) for at, row in world.produced["plain"].rows.items())
    assert pig.dump(script) == expected


def test_tables_are_read_by_hcatalog(world: LoadWorld, tmp_path: Path) -> None:
    hcat = Pig(tmp_path / "hcat", "pig-hcat")
    script = (
        f"t = LOAD 'headrace.{TOPIC}' USING org.apache.hive.hcatalog.pig.HCatLoader();\n"
        "day = FILTER t BY dt == '2026-01-01';\n"
        "result = FOREACH day GENERATE kafka.$0, kafka.$1, id, note, hr;"
    )
    lines = hcat.dump(script, **{"hive.metastore.uris": world.addresses["metastore"]})
    rows = world.produced[TOPIC].rows.items()
    assert lines == sorted(as_line(*at, row["id"], row.get("note", "none"), hour(row)) for at, row in rows)


def hour(row: dict[str, int]) -> str:
    return f"{row['timestamp'] // 3_600_000 % 24:02}"
