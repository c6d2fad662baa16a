"""Topics become tables: a real registry, broker, Spark and metastore, with queries by SQL."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from headrace.avro_codec.encode import encode_bytes
from headrace.avro_schema import frame
from headrace.hive_ddl.table import COMPLETE_UNTIL
from headrace.loader.apply.complete import instant_text
from support.checkout import ROOT
from support.loader.load_world import FIELDS, NOTE, LoadWorld, event_schema

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("tables")]

NO_SERVER = "127.0.0.1:1"
HOUR_MS = 3_600_000


@pytest.fixture
def world(tables_world: LoadWorld) -> LoadWorld:
    return tables_world


def test_new_topics_new_fields_and_bad_messages_get_tables_without_configuration(
    world: LoadWorld, analyst: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All these loads run in the same hour, since a load without messages updates the completeness of tables in a new
    # hour.
    hour_ms = int(time.time() * 1000) // HOUR_MS * HOUR_MS
    monkeypatch.setattr(world, "now_ms", hour_ms + 1)
    analyst.sql("CREATE DATABASE IF NOT EXISTS headrace")
    analyst.sql("CREATE TABLE headrace.mine (a INT) STORED AS TEXTFILE")
    world.produce("orders", 40)
    world.produce("mine", 10)
    world.produce("odd", 20)
    world.producer.send("odd", value=frame(999, b"\x02"), partition=0).get(30)
    world.producer.send("nobody", value=b"no subject").get(30)

    first = world.load()
    assert first.returncode == 1, first.stdout + first.stderr
    assert "waiting: nobody: no subject nobody-value is registered" in first.stdout
    assert "PROBLEM: mine: the Hive table headrace.mine does not belong to topic mine" in first.stdout
    assert len(world.published("odd")[1]) == 2  # not Avro, and an unregistered schema id
    assert list(world.warehouse.glob("mine/dt=*")) == []
    held = world.command("load", "status", *world.flags())
    assert held.returncode == 1
    assert "schema files partitions audit" in held.stdout

    analyst.sql("DROP TABLE headrace.mine")
    world.produce("orders", 20, fields=[*FIELDS, NOTE])
    world.produce("second", 10)  # less than a tenth of each topic's messages may be bad
    config = world.data_dir / "views.toml"
    config.write_text("[hive]\nlatest_views = true\n")
    second = world.load("--format", "json", "--config", str(config))
    assert second.returncode == 0, second.stdout + second.stderr
    loaded = {one["topic"]: one for one in json.loads(second.stdout)["loaded"]}
    assert loaded["orders"]["schema_changed"]
    assert loaded["second"]["new"]
    topics = ("orders", "mine", "second")
    for topic in topics:
        assert sorted(at for at, _ in world.published(topic)[0]) == sorted(world.produced[topic].rows)
    (row,) = analyst.sql(
        "SELECT count(*) AS n, count_if(note = 'none') AS old, count(DISTINCT kafka.partition, kafka.offset) AS places,"
        " count(DISTINCT dt, hr) AS time_partitions, (SELECT count(*) FROM headrace.mine) AS mine, "
        "(SELECT count(*) FROM headrace_quarantine.orders) AS bad FROM headrace.orders"
    ).collect()
    assert row.asDict() == {
        "n": 60,
        "old": 40,
        "places": 60,
        "time_partitions": 3,
        "mine": 10,
        "bad": 2,
    }

    (view,) = analyst.sql("SELECT count(*) AS n, count(note) AS notes FROM headrace.orders_latest").collect()
    assert (view.n, view.notes) == (60, 60)

    for topic in topics:
        (output_line,) = analyst.sql(f"SHOW TBLPROPERTIES headrace.{topic} ('{COMPLETE_UNTIL}')").collect()
        assert output_line.value == instant_text(hour_ms)

    third = world.load()
    assert third.returncode == 0
    assert "nothing loaded, 1 message held back" in third.stdout
    assert "phase=spark" not in third.stderr


def test_types_beyond_what_a_metastore_stores_are_loaded_and_read(world: LoadWorld, analyst: Any) -> None:
    """Covers a topic whose first schema has such a type, and a topic that gets one later."""

    field = {"type": "string", "default": ""}

    def with_row(members: int) -> list[dict[str, Any]]:
        named = [field | {"name": f"some_column_name_of_a_table_{n:04}"} for n in range(members)]
        row = {"type": "record", "name": "Row", "fields": named}
        return [*FIELDS, {"name": "before", "type": ["null", row], "default": None}]

    row = b"\x02" + b"".join(b"\x02" + b"%d" % (n % 10) for n in range(1001))
    for members in ({"wide": 1000, "grown": 3}, {"wide": 1001, "grown": 1001}):
        for topic, count in members.items():
            world.produce(topic, 10, fields=with_row(count))
            schema = json.dumps(event_schema(topic, with_row(count)))
            schema_id = world.registry.register(f"{topic}-value", schema).schema_id
            if count == 1001:
                world.producer.send(topic, value=frame(schema_id, b"\x02\x00\x00" + row), partition=0).get(30)
        done = world.load()
        assert done.returncode == 0, done.stdout + done.stderr
    for topic in ("wide", "grown"):
        query = f"SELECT count(*), max(before.some_column_name_of_a_table_0999) FROM headrace.{topic}"
        assert [tuple(found) for found in analyst.sql(query).collect()] == [(21, "9")]


def test_text_is_a_time_field_and_an_unusable_time_field_is_reported(world: LoadWorld, analyst: Any) -> None:
    times = {"texts": ("string", encode_bytes(b"2013-01-01T05:30:00+02:00")), "doubles": ("double", b"\x00" * 8)}
    for topic, (kind, body) in times.items():
        schema = json.dumps(event_schema(topic, [{"name": "timestamp", "type": kind}]))
        schema_id = world.registry.register(f"{topic}-value", schema).schema_id
        world.producer.send(topic, value=frame(schema_id, body), partition=0, timestamp_ms=HOUR_MS).get(30)
    note = "note: doubles: the time field timestamp is a double, which states no unit: rows are filed by the time of "
    assert note in world.command("load", "plan", *world.flags()).stdout
    done = world.load()
    assert done.returncode == 0, done.stdout + done.stderr
    assert note in done.stdout and "note: texts" not in done.stdout
    assert note in world.command("load", "status", *world.flags()).stdout
    for topic, found in {"texts": ("2013-01-01", "03"), "doubles": ("1970-01-01", "01")}.items():
        assert [tuple(row) for row in analyst.sql(f"SELECT dt, hr FROM headrace.{topic}").collect()] == [found]


def test_outages_of_registry_and_metastore_delay_and_lose_nothing(world: LoadWorld) -> None:
    staging = world.warehouse / "_headrace" / "staging"
    world.produce("outage", 10)
    assert world.load().returncode == 0
    staged_before = set(staging.iterdir())  # by loads of other tests that failed
    world.produce("outage", 10)
    held = world.cold_load("--metastore", f"thrift://{NO_SERVER}", "--registry-url", f"http://{NO_SERVER}")
    assert held.returncode == 2, held.stdout + held.stderr
    assert "PROBLEM: outage: the Hive metastore" in held.stdout
    assert "loads continue with the cached schemas" in held.stderr.splitlines()[-1]
    assert len(world.published("outage")[0]) == 10
    second = world.load()
    assert second.returncode == 0, second.stdout + second.stderr
    rows, quarantined = world.published("outage")
    assert sorted(at for at, _ in rows) == sorted(world.produced["outage"].rows)
    assert len(quarantined) == 2
    assert set(staging.iterdir()) == staged_before


def test_printing_executor_prints_create_table(world: LoadWorld) -> None:
    world.produce("printed", 10)
    other_dir = str(world.data_dir / "other")
    run = world.load("--warehouse", other_dir, "--new-warehouse", "--hive-executor", "print")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "CREATE EXTERNAL TABLE" in run.stdout
    assert "`printed`" in run.stdout


def test_spark_that_does_not_start_is_a_one_line_error(world: LoadWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without local directories, as in a YARN container."""
    world.produce("refused", 10)
    monkeypatch.setenv("CONTAINER_ID", "container_1_0001_01_000001")
    run = world.cold_load()
    assert run.returncode == 2
    assert run.stderr.splitlines()[-1] == "headrace: Spark did not start: Yarn Local dirs can't be empty"
    assert "Traceback" not in run.stderr


def oozie_action(example: str, kind: str) -> ElementTree.Element:
    action = ElementTree.parse(ROOT / "examples" / example / "workflow.xml").find(f".//{{*}}{kind}")
    assert action is not None
    return action


@pytest.fixture
def paths_of_examples(world: LoadWorld, tmp_path: Path) -> dict[str, str]:
    """Returns the paths of program and settings on this machine, by their paths in the examples."""
    settings = tmp_path / "headrace.toml"
    settings.write_text(
        f'data_dir = "{world.data_dir}"\n[registry]\nurl = "{world.addresses["registry"]}"\n'
        f'[kafka]\nbootstrap_servers = "{world.addresses["broker"]}"\n'
        f'[hive]\nmetastore = "{world.addresses["metastore"]}"\n[spark]\nmaster = "local[2]"\n'
    )
    program = str(Path(sys.executable).with_name("headrace"))
    return {"/opt/headrace/.venv/bin/headrace": program, "/etc/headrace/headrace.toml": str(settings)}


def is_loaded(world: LoadWorld, topic: str) -> bool:
    return sorted(at for at, _ in world.published(topic)[0]) == sorted(world.produced[topic].rows)


def test_cold_load_runs_in_environment_of_oozie_ssh_action(
    world: LoadWorld, paths_of_examples: dict[str, str], tmp_path: Path
) -> None:
    """Runs in a new directory, in a shell that reads no profile, with arguments joined by blanks and without input."""
    action = oozie_action("schedule/oozie", "ssh")
    words = [action.findtext("{*}command"), *(node.text for node in action.iterfind("{*}args"))]
    command = " ".join(paths_of_examples.get(str(word), str(word)) for word in words)
    directory = tmp_path / "oozie-oozi" / "0000001-W" / "load--ssh"
    directory.mkdir(parents=True)
    (tmp_path / "home").mkdir()
    environment = {"HOME": str(tmp_path / "home"), "USER": "headrace", "LOGNAME": "headrace", "SHELL": "/bin/sh"}
    world.produce("oozie", 10)
    shell = ["/bin/sh", "-c", f"{command} > action.stdout 2> action.stderr"]
    run = subprocess.run(
        shell,
        cwd=directory,
        env={**environment, "PATH": "/usr/local/bin:/usr/bin:/bin"},
        stdin=subprocess.DEVNULL,
        timeout=180,
        check=False,
    )
    output = [(directory / f"action.{name}").read_text() for name in ("stdout", "stderr")]
    assert run.returncode == 0, output
    assert "oozie" in output[0]
    assert is_loaded(world, "oozie")
    assert sorted(path.name for path in directory.iterdir()) == ["action.stderr", "action.stdout"]


def test_cold_load_runs_in_environment_of_oozie_shell_action(
    world: LoadWorld, paths_of_examples: dict[str, str], tmp_path: Path
) -> None:
    """Runs in a new container directory with the action's files, last in PATH, as a user without a home directory."""
    action = oozie_action("cluster/oozie", "shell")
    directory = tmp_path / "usercache" / "headrace" / "appcache" / "application_1_0001" / "container_1_0001_01_000001"
    directory.mkdir(parents=True)
    for node in action.iterfind("{*}file"):
        origin, _, name = str(node.text).partition("#")
        text = (ROOT / "examples" / "cluster" / "oozie" / origin.removeprefix("${appPath}/")).read_text()
        for example_path, actual_path in paths_of_examples.items():
            text = text.replace(example_path, actual_path)
        (directory / name).write_text(text)
        (directory / name).chmod(0o500)
    action_files = sorted(path.name for path in directory.iterdir())
    (tmp_path / "local").mkdir()
    environment = {
        "LOCAL_DIRS": str(tmp_path / "local"),
        **dict(str(node.text).split("=", 1) for node in action.iterfind("{*}env-var")),
        "USER": "headrace",
        "LOGNAME": "headrace",
        "HOME": str(tmp_path / "nowhere"),
        "PWD": str(directory),
        "CONTAINER_ID": directory.name,
        "OOZIE_ACTION_CONF_XML": str(directory / "action.xml"),
        "MALLOC_ARENA_MAX": "4",
    }
    command = [str(action.findtext("{*}exec")), *(str(node.text) for node in action.iterfind("{*}argument"))]
    world.produce("shelled", 10)
    run = subprocess.run(
        ["/usr/bin/env", *command],  # which searches the PATH
        cwd=directory,
        env={**environment, "PATH": f"/usr/local/bin:/usr/bin:/bin:{directory}"},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=180,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "shelled" in run.stdout
    assert is_loaded(world, "shelled")
    assert sorted(path.name for path in directory.iterdir()) == action_files


def test_tasks_run_in_an_executor_of_a_cluster(world: LoadWorld) -> None:
    """The executor is a process that Spark's standalone cluster starts."""
    world.produce("clustered", 10)
    done = world.cold_load("--master", "local-cluster[1,1,1024]")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(at for at, _ in world.published("clustered")[0]) == sorted(world.produced["clustered"].rows)


def test_held_back_topic_is_reported_previewed_and_let_into_the_quarantine(world: LoadWorld) -> None:
    """The way of an operator: status, preview, load --quarantine-all, accept."""
    world.produce("floods", 0)
    sent = [world.producer.send("floods", value=b'{"id": 1}') for _ in range(500)]
    world.producer.flush()
    world.produced["floods"].bad |= {(one.get(30).partition, one.get(30).offset) for one in sent}
    servers = world.flags()[:6]
    held = world.load("--topic", "floods")
    assert held.returncode == 1, held.stderr
    assert "headrace quarantine preview floods" in held.stdout
    first_lines = "\n".join(world.command("status", *world.flags()).stdout.splitlines()[:10])
    assert "501 of 501 messages cannot be loaded" in first_lines
    assert "headrace quarantine preview floods" in first_lines
    assert "headrace load --topic floods --quarantine-all" in first_lines
    shown = world.command("quarantine", "preview", "floods", *servers)
    assert shown.returncode == 1, shown.stderr
    assert "read 502 of 502 pending offsets" in shown.stdout
    assert "500 messages: framing" in shown.stdout
    assert '{"id": 1}' in shown.stdout
    assert "looks like JSON" in shown.stdout
    let_in = world.load("--topic", "floods", "--quarantine-all")
    assert let_in.returncode == 0, let_in.stderr
    in_quarantine = "floods with messages in quarantine: 501 messages, 501 of them since yesterday"
    assert in_quarantine in world.command("status", *world.flags()).stdout
    accepted = world.command("accept", "floods", "--reason", "test", *world.flags()[:2])
    assert accepted.returncode == 0, accepted.stderr
    assert "floods" not in world.command("status", *world.flags()).stdout
