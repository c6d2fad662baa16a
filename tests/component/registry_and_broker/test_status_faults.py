"""The table of faults that `headrace status` alone must name, with cause and repair, on a running `headrace up`."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.avro_schema import frame
from headrace.cli import main
from headrace.loader.errors import UnwritableWarehouse
from headrace.pipeline.status.collect import platform_status
from headrace.registry.access.passwords import Cost, PasswordHash
from headrace.registry.access.users import user_line
from headrace.registry.client import BasicAuth, RegistryClient
from headrace.settings import load_settings
from support.loader.loads_in_process import SCHEMA, SCHEMA_ID, Loads
from support.processes import is_running
from support.running_service import Service, StartService
from support.servers.postgres_server import PostgresServer
from support.shared import shared
from support.status_faults import ExpectedFinding, check_status, check_well, status_json

pytestmark = pytest.mark.servers

TIMEOUT_S = 60
DAY_MS = 86_400_000
FREE_PORTS = ("--registry-listen", "127.0.0.1:0", "--broker-listen", "127.0.0.1:0")
Heal = Callable[[], None]


@dataclass
class Platform:
    """A running `headrace up` of registry and broker, with loads that run in this process."""

    service: Service
    data_dir: Path
    topics: set[str] = field(default_factory=set)

    @property
    def arguments(self) -> list[str]:
        return ["--data-dir", str(self.data_dir)]

    @property
    def broker(self) -> str:
        return self.service.addresses["broker"]

    def pid(self, part: str) -> int:
        return int(json.loads((self.data_dir / "up.json").read_text())["pids"][part])

    def is_running(self) -> bool:
        return self.service.process.poll() is None

    def loaded_topic(self, name: str, messages: int = 10, **config: str) -> Loads:
        """Creates a topic with messages, and loads them."""
        admin = AdminClient({"bootstrap.servers": self.broker})
        admin.create_topics([NewTopic(name, 1, config=config)])[name].result(TIMEOUT_S)
        loads = Loads(self.data_dir, name)
        loads.produce(self.broker, range(messages))
        assert sum(one.rows for one in loads.load(self.broker).loaded) == messages
        return loads

    def stop(self) -> None:
        self.service.stop()


@pytest.fixture(scope="module")
def start_platform(
    tmp_path_factory: pytest.TempPathFactory, start_module_service: StartService
) -> Iterator[Callable[[], Platform]]:
    def start() -> Platform:
        data_dir = tmp_path_factory.mktemp("platform")
        command = ("headrace", "up", "--data-dir", str(data_dir), *FREE_PORTS, "--only", "registry,broker")
        return Platform(start_module_service(*command), data_dir)

    with shared(start, Platform.is_running, Platform.stop) as get:
        yield get


@pytest.fixture
def platform(start_platform: Callable[[], Platform]) -> Platform:
    return start_platform()


def nothing() -> None:
    """Heals a fault that ends the platform."""


def stop_process(part: str) -> Callable[[Platform], Heal]:
    def apply(platform: Platform) -> Heal:
        group = platform.pid(part)
        os.killpg(group, signal.SIGSTOP)
        return lambda: os.killpg(group, signal.SIGCONT)

    return apply


def stop_up(platform: Platform) -> Heal:
    """Stops `up` alone: its parts still respond, and no load starts."""
    platform.service.process.send_signal(signal.SIGSTOP)
    return lambda: platform.service.process.send_signal(signal.SIGCONT)


def damage_commit(platform: Platform) -> Heal:
    platform.loaded_topic("damaged-commit")
    path = max((platform.data_dir / "warehouse" / "_headrace" / "log").iterdir())
    content = path.read_bytes()
    path.write_bytes(content[:-20])
    return lambda: path.write_bytes(content) and None


def accept(platform: Platform, topic: str) -> None:
    assert main(["accept", topic, "--reason", "test", *platform.arguments]) == 0


def with_deleted_messages(platform: Platform, topic: str) -> Loads:
    """Deletes messages before they are read, as retention does."""
    loads = platform.loaded_topic(topic)
    loads.produce(platform.broker, range(10, 20))
    admin = AdminClient({"bootstrap.servers": platform.broker})
    for future in admin.delete_records([TopicPartition(topic, 0, 15)]).values():
        future.result(TIMEOUT_S)
    return loads


def delete_unread(platform: Platform) -> Heal:
    loads = with_deleted_messages(platform, "expired")
    assert loads.load(platform.broker).problems
    _, document = status_json(platform.arguments)
    assert [one["kind"] for one in document["findings"]] == ["data-lost"], "also the load held back the topic"

    def heal() -> None:
        assert not loads.load(platform.broker, on_data_loss="skip").problems
        accept(platform, "expired")

    return heal


def skip_deleted(platform: Platform) -> Heal:
    with_deleted_messages(platform, "skipped").load(platform.broker, on_data_loss="skip")
    return lambda: accept(platform, "skipped")


def delete_topic(platform: Platform) -> Heal:
    loads = platform.loaded_topic("deleted")
    admin = AdminClient({"bootstrap.servers": platform.broker})
    admin.delete_topics(["deleted"])["deleted"].result(TIMEOUT_S)
    loads.load(platform.broker)

    def heal() -> None:
        with mock.patch.dict(os.environ, {"HEADRACE__LOADER__TOPICS_EXCLUDE": "deleted"}):
            check_well(platform.arguments)
        admin.create_topics([NewTopic("deleted", 1)])["deleted"].result(TIMEOUT_S)
        loads.produce(platform.broker, range(1))
        assert loads.load(platform.broker, on_data_loss="skip").loaded
        accept(platform, "deleted")

    return heal


def send_some_garbage(platform: Platform) -> Heal:
    loads = platform.loaded_topic("some-garbage")
    loads.produce_values(platform.broker, [b'{"n": 1}'] * 60)
    assert loads.load(platform.broker).problems
    assert not loads.load(platform.broker).problems
    return lambda: accept(platform, "some-garbage")


def send_only_garbage(platform: Platform) -> Heal:
    loads = platform.loaded_topic("only-garbage")
    loads.produce_values(platform.broker, [b'{"n": 1}'] * 500)
    assert loads.load(platform.broker).held_back == 500

    def heal() -> None:
        assert not loads.load(platform.broker, quarantine_ratio_max=1.0).problems
        accept(platform, "only-garbage")

    return heal


def force_incompatible_version(platform: Platform) -> Heal:
    loads = platform.loaded_topic("incompatible")
    loads.register(SCHEMA_ID + 1, SCHEMA.replace('"long"', '"string"'))
    loads.produce_values(platform.broker, [frame(SCHEMA_ID + 1, b"\x02a")])
    assert not loads.load(platform.broker).problems
    return lambda: accept(platform, "incompatible")


def flip_byte_in_segment(platform: Platform) -> Heal:
    """Flips a byte of the last unread batch. The batches before it are loaded."""
    loads = platform.loaded_topic("flipped")
    loads.produce(platform.broker, range(10, 30))
    segment = platform.data_dir / "broker" / "flipped-0" / f"{0:020d}.log"
    with segment.open("r+b") as file:
        file.seek(-20, os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(-20, os.SEEK_END)
        file.write(bytes([byte ^ 1]))
    assert loads.load(platform.broker).problems

    def heal() -> None:
        run_repair(platform, "offsets skip")
        loads.produce(platform.broker, range(30, 40))
        assert not loads.load(platform.broker).problems
        assert sum(map(len, loads.rows().values())) == 34

    return heal


def run_repair(platform: Platform, command: str) -> None:
    """Runs a command of a finding's repair as it is printed."""
    _, document = status_json(platform.arguments)
    texts = [one["repair"] for one in document["findings"]]
    (words,) = [found[0] for text in texts if (found := re.findall(rf"headrace ({command} .* TEXT)", text))]
    assert main([*words.split(), *platform.arguments]) == 0


def leave_old_message_unread(platform: Platform) -> Heal:
    """Leaves a message unread that retention may delete in ten minutes. Messages before it are as old: retention
    deletes no message before the ones at lower offsets."""
    loads = platform.loaded_topic("expiring", messages=0, **{"retention.ms": str(7 * DAY_MS)})
    producer = ConfluentProducer({"bootstrap.servers": platform.broker})
    old_ms = int(time.time() * 1000) - 7 * DAY_MS + 600_000

    def produce() -> None:
        producer.produce("expiring", frame(SCHEMA_ID, b"\x02"), partition=0, timestamp=old_ms)
        assert producer.flush(TIMEOUT_S) == 0

    def load() -> None:
        assert loads.load(platform.broker).loaded

    produce()
    load()
    check_well(platform.arguments)
    produce()
    return load


def put_damaged_segment_aside(platform: Platform) -> Heal:
    """Leaves the file that a start with `broker.on_corruption=rename` leaves."""
    platform.loaded_topic("segment")
    segment = platform.data_dir / "broker" / "segment-0" / f"{0:020d}.log"
    corrupt = segment.with_name(segment.name + ".corrupt")
    shutil.copy(segment, corrupt)
    return corrupt.unlink


def kill_broker(platform: Platform) -> Heal:
    os.kill(platform.pid("broker"), signal.SIGKILL)
    platform.service.process.wait(TIMEOUT_S)
    return nothing


def kill_up(platform: Platform) -> Heal:
    parts = [platform.pid("registry"), platform.pid("broker")]
    platform.service.kill()
    deadline = time.monotonic() + TIMEOUT_S
    while any(map(is_running, parts)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return nothing


class Fault(NamedTuple):
    """`apply` causes the fault and returns a function that heals it."""

    apply: Callable[[Platform], Heal]
    expected: ExpectedFinding


FAULTS = {
    "registry frozen": Fault(
        stop_process("registry"),
        ExpectedFinding(
            "part-stopped", "registry", r"process(es)? \d+.* stopped; .* does not answer", r"kill -CONT \d+"
        ),
    ),
    "broker frozen": Fault(
        stop_process("broker"),
        ExpectedFinding("part-stopped", "broker", r"process \d+ is stopped; .* does not answer", r"kill -CONT \d+"),
    ),
    "up frozen": Fault(
        stop_up,
        ExpectedFinding("part-stopped", "headrace up", r"process \d+ is stopped: no load starts", r"kill -CONT \d+"),
    ),
    "commit file damaged": Fault(
        damage_commit,
        ExpectedFinding(
            "commit-log-damaged", "commit log", r"_headrace/log/\d+\.json", r"restore the file from a backup"
        ),
    ),
    "messages deleted unread": Fault(
        delete_unread,
        ExpectedFinding(
            "data-lost", "expired", r"offsets 10 to 14 were removed before", r"ON_DATA_LOSS=skip headrace load"
        ),
    ),
    "messages deleted unread and skipped": Fault(
        skip_deleted,
        ExpectedFinding(
            "alarm-lost", "skipped", r"5 offsets.*offsets 10 to 14 were removed before", r"headrace accept skipped"
        ),
    ),
    "topic deleted": Fault(
        delete_topic,
        ExpectedFinding("topic-deleted", "deleted", r"the brokers do not have it", r"loader\.topics_exclude", 1),
    ),
    "60 garbage messages": Fault(
        send_some_garbage,
        ExpectedFinding("alarm-quarantined", "some-garbage", r"60 messages", r"headrace quarantine replay", 1),
    ),
    "500 garbage messages of 500": Fault(
        send_only_garbage,
        ExpectedFinding(
            "topic-held-back", "only-garbage", r"500 of 500 messages cannot be loaded", r"--quarantine-all", 1
        ),
    ),
    "incompatible schema forced": Fault(
        force_incompatible_version,
        ExpectedFinding(
            "alarm-incompatible", "incompatible", r"version 2 of subject incompatible-value", r"headrace hive latest", 1
        ),
    ),
    "byte flipped in a segment": Fault(
        flip_byte_in_segment,
        ExpectedFinding(
            "topic-held-back",
            "flipped",
            r"offset 24: the batch has the wrong checksum",
            r"headrace offsets skip flipped 0 24 --to 30 --reason TEXT",
            1,
        ),
    ),
    "unread message about to expire": Fault(
        leave_old_message_unread,
        ExpectedFinding("data-expires-soon", "expiring", r"may expire within 2 hours", r"headrace load"),
    ),
    "segment damaged": Fault(
        put_damaged_segment_aside,
        ExpectedFinding("segment-damaged", "segment-0", r"0{20}\.log\.corrupt damaged", r"restore .*\.corrupt"),
    ),
    "broker killed": Fault(
        kill_broker,
        ExpectedFinding("up-down", "headrace up", r"the broker died: killed by SIGKILL", r"^headrace up$|headrace up"),
    ),
    "up killed": Fault(kill_up, ExpectedFinding("up-down", "headrace up", r"process \d+ was killed", r"headrace up")),
}
"""Each fault, and what `headrace status` must report. A fault that ends the platform costs the next one a start."""


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.timeout(300)
def test_status_names_fault_cause_and_repair(fault: Fault, platform: Platform) -> None:
    check_well(platform.arguments)
    heal = fault.apply(platform)
    try:
        repair = check_status(platform.arguments, fault.expected)
        if repair.startswith("kill "):
            subprocess.run(["/bin/sh", "-c", repair], check=True)
    finally:
        heal()
    if heal is not nothing:
        check_well(platform.arguments)


def flip_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


FILE_FAULTS: dict[str, tuple[Callable[[Path], object], str, str, str]] = {
    "file deleted": (Path.unlink, "file-missing", "is missing", "backfill .*accept-missing"),
    "byte flipped": (flip_byte, "file-content", "checksum", "backfill"),
    "file truncated": (lambda path: os.truncate(path, 20), "file-length", "has 20 bytes instead of", "backfill"),
    "directory deleted": (lambda path: shutil.rmtree(path.parent), "file-missing", "is missing", "backfill"),
}
"""Each fault of a file of a table, with the kind, the cause and the repair that `headrace status` must report."""


@pytest.mark.parametrize(("damage", "kind", "cause", "repair"), FILE_FAULTS.values(), ids=FILE_FAULTS)
def test_status_names_damaged_file_within_one_load(
    platform: Platform, damage: Callable[[Path], object], kind: str, cause: str, repair: str
) -> None:
    topic = f"files-{kind}-{cause.split()[-1]}-{repair.split()[0]}-{time.monotonic_ns()}"
    loads = platform.loaded_topic(topic)
    warehouse = platform.data_dir / "warehouse"
    (path,) = (warehouse / loads.directory).rglob("*.avro")
    content = path.read_bytes()
    damage(path)
    loads.load(platform.broker)
    check_status(platform.arguments, ExpectedFinding(kind, str(path.relative_to(warehouse)), cause, repair))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    loads.load(platform.broker)
    check_well(platform.arguments)


def test_status_names_foreign_file_and_foreign_table_within_one_load(platform: Platform) -> None:
    loads = platform.loaded_topic("foreign")
    warehouse = platform.data_dir / "warehouse"
    (path,) = (warehouse / loads.directory).rglob("*.avro")
    foreign = path.with_name("copy.avro")
    shutil.copy(path, foreign)
    loads.replace_table()
    loads.load(platform.broker)
    subject = str(foreign.relative_to(warehouse))
    check_status(
        platform.arguments, ExpectedFinding("file-foreign", subject, "no commit contains", "hive repair foreign")
    )
    check_status(
        platform.arguments, ExpectedFinding("table-wrong", "foreign", "does not belong to topic", "headrace load")
    )
    foreign.unlink()
    loads.drop_table()
    loads.load(platform.broker)
    check_well(platform.arguments)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """A file system in memory at the test's directory, and a function that changes its size."""

    def mount(options: str) -> None:
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(tmp_path)], check=True, capture_output=True)

    try:
        mount("size=4g")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"mounting a file system requires root and CAP_SYS_ADMIN: {error}")
    try:
        yield lambda size: mount(f"remount,size={size}")
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def test_status_names_full_disk(small_disk: Callable[[str], None], tmp_path: Path, start_service: StartService) -> None:
    """Data of broker, registry and warehouse are on one file system without free space."""
    service = start_service("headrace", "up", "--data-dir", str(tmp_path), *FREE_PORTS, "--only", "registry,broker")
    platform = Platform(service, tmp_path)
    loads = platform.loaded_topic("full")
    check_well(platform.arguments)
    loads.produce(platform.broker, range(10, 20))
    small_disk(str(shutil.disk_usage(tmp_path).used))
    expected = ExpectedFinding("disk-full", "disk of data_dir", f"0 MiB left at {tmp_path}", "free disk space")
    check_status(platform.arguments, expected)
    with pytest.raises(UnwritableWarehouse):
        loads.load(platform.broker)
    check_status(platform.arguments, expected)
    small_disk("4g")
    assert sum(one.rows for one in loads.load(platform.broker).loaded) == 10
    check_well(platform.arguments)
    assert service.stop() == 0


def test_status_names_registry_that_rejects_credentials(
    tmp_path: Path, start_service: StartService, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = tmp_path / "registry.users"
    hashed = PasswordHash.of("p4ss", b"some salt", Cost(log2_n=4, r=1, p=1))
    users.write_text(f"{user_line('loader', hashed)}\ngrant loader write rejected-value\n")
    command = ("headrace", "up", "--data-dir", str(tmp_path), *FREE_PORTS, "--only", "registry,broker")
    service = start_service(*command, environment={"HEADRACE__REGISTRY__USERS": str(users)})
    platform = Platform(service, tmp_path)
    url = service.addresses["registry"]
    admin = AdminClient({"bootstrap.servers": platform.broker})
    admin.create_topics([NewTopic("rejected", 1)])["rejected"].result(TIMEOUT_S)
    loads = Loads(tmp_path, "rejected")
    expected = ExpectedFinding(
        "load-registry-refused", "registry", r"rejected them: Unauthorized", r"registry\.client_password"
    )
    without = ExpectedFinding(
        "part-failing", "registry", r"correct registry\.client_user", "the cause that the error names"
    )
    check_status(platform.arguments, without)
    monkeypatch.setenv("HEADRACE__REGISTRY__CLIENT_USER", "loader")
    monkeypatch.setenv("HEADRACE__REGISTRY__CLIENT_PASSWORD", "p4ss")
    check_well(platform.arguments)
    with RegistryClient(url, auth=BasicAuth("loader", "p4ss")) as client:
        schema_id = client.register("rejected-value", SCHEMA).schema_id
        loads.produce_values(platform.broker, [frame(schema_id, b"\x02")])
        for auth in (None, BasicAuth("loader", "wrong")):
            with RegistryClient(url, auth=auth) as rejected:
                loads.use_registry(rejected)
                assert loads.load(platform.broker).is_registry_refused
            check_status(platform.arguments, expected)
        loads.use_registry(client)
        assert sum(one.rows for one in loads.load(platform.broker).loaded) == 1
    check_well(platform.arguments)
    assert service.stop() == 0


def test_status_names_clock_that_differs(platform: Platform) -> None:
    now_ms = time.time_ns() // 1_000_000
    settings = load_settings(flags={"data_dir": str(platform.data_dir)})
    found = [one for one in platform_status(settings, now_ms + 300_000).findings if one.kind == "clock-differs"]
    assert [one.problem.partition(" that of")[0] for one in found] == ["5 minutes ahead of"]
    assert "clock-differs" not in [one.kind for one in platform_status(settings, now_ms).findings]


def test_status_after_stop_names_time_and_start(tmp_path: Path, start_service: StartService) -> None:
    """Without `up`, the addresses of the defaults may belong to other servers, so ports are named that are closed."""
    arguments = ["--data-dir", str(tmp_path), "--registry-listen", "127.0.0.1:1", "--broker-listen", "127.0.0.1:2"]
    service = start_service("headrace", "up", "--data-dir", str(tmp_path), *FREE_PORTS, "--only", "registry,broker")
    assert service.stop() == 0
    check_status(arguments, ExpectedFinding("up-down", "headrace up", "stopped by a signal", "headrace up"))


def test_status_names_segment_that_prevents_a_start(tmp_path: Path, start_service: StartService) -> None:
    """With `broker.on_corruption=fail`, the default, and after the start with `rename`."""
    command = ("headrace", "up", "--data-dir", str(tmp_path), *FREE_PORTS, "--only", "registry,broker")
    platform = Platform(start_service(*command), tmp_path)
    platform.loaded_topic("torn")
    assert platform.service.stop() == 0
    segment = tmp_path / "broker" / "torn-0" / f"{0:020d}.log"
    os.truncate(segment, segment.stat().st_size // 2)
    with pytest.raises(RuntimeError):
        start_service(*command)
    expected = ExpectedFinding(
        "up-down", "headrace up", r"the broker did not start: .*torn-0", r"ON_CORRUPTION=rename.*; then headrace up"
    )
    check_status(platform.arguments, expected)
    renamed = start_service(*command, environment={"HEADRACE__BROKER__ON_CORRUPTION": "rename"})
    damaged = ExpectedFinding("segment-damaged", "torn-0", r"0{20}\.log\.corrupt damaged", r"restore .*\.corrupt")
    check_status(platform.arguments, damaged)
    assert renamed.stop() == 0


@pytest.mark.postgres
def test_status_names_postgres_that_is_down(tmp_path: Path, start_service: StartService) -> None:
    server = PostgresServer()
    try:
        url = server.new_database()
        assert main(["registry", "db", "upgrade", "--database-url", url]) == 0
        environment = {"HEADRACE__REGISTRY__DATABASE_URL": url}
        command = ("headrace", "up", "--data-dir", str(tmp_path), *FREE_PORTS, "--only", "registry,broker")
        service = start_service(*command, environment=environment)
        platform = Platform(service, tmp_path)
        check_well(platform.arguments)
        server.stop(signal.SIGINT)
        expected = ExpectedFinding("database-down", "registry", r"its database does not", r"start the database server")
        check_status(platform.arguments, expected)
        server.start()
        check_well(platform.arguments)
    finally:
        server.remove()


def lose_line_of_audit_log(log: Path, registry_url: str) -> None:
    """Changes the registry while a directory is in the place of its audit log."""
    log.unlink(missing_ok=True)
    log.mkdir()
    with RegistryClient(registry_url) as client:
        client.register("lost-value", SCHEMA)


def test_status_names_a_server_of_the_settings_that_is_stopped(tmp_path: Path, start_service: StartService) -> None:
    """Only the address of these servers is known. Later, the registry cannot write its audit log."""
    broker = start_service(
        "headrace", "broker", "serve", "--data-dir", str(tmp_path / "b"), "--broker-listen", "127.0.0.1:0"
    )
    registry = start_service(
        "headrace", "registry", "serve", "--data-dir", str(tmp_path / "r"), "--registry-listen", "127.0.0.1:0"
    )
    addresses: list[Any] = [
        "--bootstrap-servers",
        broker.addresses["broker"],
        "--registry-url",
        registry.addresses["registry"],
    ]
    arguments = ["--data-dir", str(tmp_path), *addresses]
    check_well(arguments)
    broker.process.send_signal(signal.SIGSTOP)
    try:
        expected = ExpectedFinding("part-silent", "broker", r"accepts connections and does not answer", r"kill -CONT")
        check_status(arguments, expected)
    finally:
        broker.process.send_signal(signal.SIGCONT)
    check_well(arguments)
    lose_line_of_audit_log(tmp_path / "r" / "logs" / "registry-audit.jsonl", registry.addresses["registry"])
    incomplete = r"1 change could not be written to it since http"
    expected = ExpectedFinding(
        "audit-log-incomplete", "audit log of the registry", incomplete, r"restart the registry", 1
    )
    check_status(arguments, expected)
    broker.kill()
    check_status(arguments, ExpectedFinding("part-down", "broker", r"refuses connections", r"start it on its host"))
