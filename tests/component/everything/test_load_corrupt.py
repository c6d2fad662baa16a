"""A flipped bit in a segment of the broker: the effect of each policy, and the remedies of an operator."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, TopicPartition

from headrace import Producer
from headrace.kafka_wire.record_batch import split_batches
from headrace.settings import KafkaSettings, RegistrySettings, Settings
from support.checkout import ROOT
from support.loader.load_world import LoadWorld, rows_of

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("load_corrupt")]

CAMUS_HISTORY = ROOT / "tests" / "golden" / "camus"
SCHEMA = '{"type": "record", "name": "R", "fields": [{"name": "timestamp", "type": "long"}]}'
T0 = 1_356_998_400_000
TOPICS = ("failed", "kept", "skipped", "healthy")
SETTINGS = """
[audit]
grace = "0s"
[[loader.topic]]
pattern = "kept"
corrupt_batches = "quarantine"
[[loader.topic]]
pattern = "skipped"
corrupt_batches = "skip"
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadWorld]:
    world = LoadWorld(tmp_path_factory.mktemp("corrupt"), metastore=False, keeps_spark=True)
    (world.data_dir / "headrace.toml").write_text(SETTINGS)
    yield world
    world.close()


def produce(world: LoadWorld, *counts: int) -> None:
    """Produces to one partition of each topic, in batches of the given sizes."""
    settings = Settings(
        data_dir=world.data_dir,
        registry=RegistrySettings(url=world.addresses["registry"]),
        kafka=KafkaSettings(bootstrap_servers=world.addresses["broker"]),
    )
    with Producer(settings, app="shop", linger_ms=200) as producer:
        for count in counts:
            for topic in TOPICS:
                for n in range(count):
                    producer.send(topic, {"timestamp": T0 + n * 60_000}, key="one", schema=SCHEMA)
            producer.flush()


def flip_a_bit(world: LoadWorld, topic: str) -> tuple[int, int, int, bytes]:
    """Flips a bit in the second batch of the topic's only partition with messages. Returns the partition, the offsets
    of the batch, and the batch."""
    (segment,) = [path for path in world.data_dir.rglob("*.log") if topic in str(path) and path.stat().st_size]
    second = list(split_batches(segment.read_bytes(), "here"))[1]
    with segment.open("r+b") as file:
        file.seek(second.end - 5)
        (byte,) = file.read(1)
        file.seek(second.end - 5)
        file.write(bytes([byte ^ 4]))
        file.seek(second.position)
        batch = file.read(len(second.view))
    assert second.next_base_offset is not None
    return int(segment.parent.name.rpartition("-")[2]), second.base_offset, second.next_base_offset, batch


def run(world: LoadWorld, *words: str) -> subprocess.CompletedProcess[str]:
    return world.command(*words, "--config", str(world.data_dir / "headrace.toml"))


def load(world: LoadWorld) -> dict[str, Any]:
    done = run(world, "load", *world.load_flags("--hive-executor", "print", "--format", "json"))
    report: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (1 if report["problems"] else 0), done.stderr
    return report


def rows_loaded(report: dict[str, Any]) -> dict[str, int]:
    return {one["topic"]: one["rows"] for one in report["loaded"] if one["topic"] in TOPICS}


def data_flags(world: LoadWorld) -> list[str]:
    return ["--data-dir", str(world.data_dir), "--bootstrap-servers", world.addresses["broker"]]


def shown(world: LoadWorld, topic: str, partition: int) -> dict[str, object]:
    done = run(world, "offsets", "show", topic, "--format", "json", *data_flags(world))
    assert done.returncode == 0, done.stderr
    (found,) = [one for one in json.loads(done.stdout)["partitions"] if one["partition"] == partition]
    return dict(found)


def test_corrupt_batch_stops_partition_or_is_skipped_by_policy(world: LoadWorld) -> None:
    produce(world, 10, 7, 3, 5)
    flipped = {topic: flip_a_bit(world, topic) for topic in TOPICS[:3]}
    partition, start, end, _ = flipped["failed"]
    assert end > start > 0

    report = load(world)
    loaded = rows_loaded(report)
    lost = end - start
    assert loaded == {"healthy": 25, "kept": 25 - lost, "skipped": 25 - lost, "failed": start}
    problems = report["problems"]
    assert set(problems) == set(TOPICS[:3])
    (problem,) = problems["failed"]
    assert f"offset {start}: the batch has the wrong checksum" in problem and "brokers are up" not in problem
    assert f"skipped {lost} offsets from {start}" in problems["kept"][0]
    (file,) = (world.warehouse / "_quarantine" / "kept").rglob("*.avro")
    (row,) = rows_of(file)
    assert (row.partition, row.offset, row.code, row.value) == (
        *flipped["kept"][:2],
        "corrupt_batch",
        flipped["kept"][3],
    )

    assert set(load(world)["problems"]) == {"failed"}
    assert shown(world, "failed", partition)["next_offset"] == start
    assert shown(world, "failed", partition)["lag"] == 25 - start

    command = re.search(r"headrace (offsets skip .* --reason) TEXT$", problem)
    assert command is not None
    words = [*shlex.split(command[1]), "ticket 4711", *data_flags(world)]
    dry = run(world, *words, "--dry-run")
    assert dry.returncode == 0 and f"{lost} offsets, {start} to {end - 1}, are skipped" in dry.stdout
    assert shown(world, "failed", partition)["next_offset"] == start
    done = run(world, *words)
    assert done.returncode == 0, done.stderr
    repeated = run(world, *words)
    assert repeated.returncode == 2 and f"continues at offset {end}, not at {start}" in repeated.stderr
    assert len(repeated.stderr.splitlines()) == 1

    report = load(world)
    assert report["problems"] == {}
    assert rows_loaded(report) == {"failed": 25 - end}
    assert shown(world, "failed", partition)["lag"] == 0

    audit = run(
        world, "audit", "report", "--format", "json", *data_flags(world), "--registry-url", world.addresses["registry"]
    )
    topics = json.loads(audit.stdout)["topics"]
    verdicts = {one["topic"]: one["verdict"] for one in topics if one["topic"] in TOPICS}
    skipped = dict.fromkeys(TOPICS[:3], "skipped")
    assert (audit.returncode, verdicts) == (0, {**skipped, "healthy": "complete"}), audit.stdout


def test_imported_group_offsets_are_where_first_load_begins(world: LoadWorld) -> None:
    world.produce("handed", 40)
    partitions = {TopicPartition("handed", at[0]) for at in world.produced["handed"].rows}
    consumer = KafkaConsumer(bootstrap_servers=world.addresses["broker"], group_id="old", enable_auto_commit=False)
    consumer.assign(list(partitions))
    ends = consumer.end_offsets(list(partitions))
    for at in partitions:
        consumer.seek(at, ends[at] - 2)
        assert consumer.position(at) == ends[at] - 2
    consumer.commit()
    consumer.close()
    imported = run(world, "offsets", "import", "--group", "old", "handed", *data_flags(world))
    assert imported.returncode == 0, imported.stderr
    assert imported.stdout.count("the first load starts at") == len(partitions)
    assert run(world, "offsets", "import", "--group", "nobody", *data_flags(world)).returncode == 2
    load(world)
    rows, quarantined = world.published("handed")
    known = world.produced["handed"]
    expected = {(at.partition, offset) for at in partitions for offset in (ends[at] - 2, ends[at] - 1)}
    others = {at for at in {*known.rows, *known.bad} if TopicPartition("handed", at[0]) not in partitions}
    assert {at for at, _ in rows} == (expected | others) & set(known.rows)
    assert set(quarantined) == (expected | others) & known.bad


def test_imported_camus_offsets_are_where_first_load_begins(world: LoadWorld) -> None:
    imported = run(world, "offsets", "import", "--camus", str(CAMUS_HISTORY), "--dry-run", *data_flags(world))
    assert imported.returncode == 0, imported.stderr
    for line in (
        "pageviews partition 0: the first load starts at 120",
        "pageviews partition 1: the first load starts at 80",
    ):
        assert line in imported.stdout


def test_offsets_commands_reject_mistakes_in_one_line(world: LoadWorld) -> None:
    world.produce("short", 20)
    for words, message in (
        (("skip", "nothing", "0", "5", "--reason", "x"), "nothing of partition 0 of topic 'nothing' was loaded"),
        (("set", "short", "0", "999999"), "ends at offset"),
        (("show", "nothing"), "topic nothing has not been loaded and was not found on the brokers"),
        (("import", "--connect", str(Path(world.data_dir))), "no file names like topic+partition+start+end.avro found"),
        (
            ("import", "--connect", "/nowhere/at/all"),
            "cannot access /nowhere/at/all: No such file or directory; check the path",
        ),
        (
            ("import", "--camus", str(Path(world.data_dir))),
            "neither this directory nor its subdirectories have files offsets*",
        ),
        (
            ("import", "--camus", "/nowhere/at/all"),
            "cannot access /nowhere/at/all: No such file or directory; check the path",
        ),
    ):
        done = run(world, "offsets", *words, *data_flags(world))
        assert done.returncode == 2 and message in done.stderr, done.stderr
        assert len(done.stderr.splitlines()) == 1 and done.stdout == ""
