"""`headrace up`: its parts, their commands, and the schedule of loads."""

from __future__ import annotations

import logging
import os
import signal
import time
from pathlib import Path
from typing import ClassVar

import pytest

from headrace.cli import main, up
from headrace.cli.load_server import EXIT_RESTART
from headrace.pipeline.up import part as parts
from headrace.pipeline.up import schedule as loads
from headrace.pipeline.up.part import Part, UpError
from headrace.pipeline.up.plan import (
    PARTS,
    PartCommand,
    child_environment,
    consecutive_deaths,
    next_aligned_ms,
    part_command,
    parts_of,
    restart_delay_s,
)
from headrace.pipeline.up.schedule import Schedule
from headrace.pipeline.up.up_file import UpFile
from headrace.pipeline.up.up_log import PART_DIED, UpLog, newest_events, systemd_unit
from headrace.settings import Duration, load_settings
from headrace.settings.addresses import LiveAddresses
from support.processes import is_running


@pytest.mark.parametrize(("now_ms", "due_ms"), [(0, 600_000), (599_999, 600_000), (600_000, 1_200_000)])
def test_next_aligned_ms_is_the_next_multiple_of_the_interval(now_ms: int, due_ms: int) -> None:
    assert next_aligned_ms(now_ms, 600_000) == due_ms


def test_child_environment_contains_flags_as_variables(tmp_path: Path) -> None:
    flags = {"data_dir": "d", "loader.partition_by": "day", "spark.master": "local[1]"}
    environment = child_environment({"PATH": "/bin", "HEADRACE__LOADER__TASKS": "3"}, flags, tmp_path / "h.toml")
    assert environment["PATH"] == "/bin"
    assert environment["HEADRACE_CONFIG"] == str(tmp_path / "h.toml")
    (tmp_path / "h.toml").write_text('[loader]\npartition_by = "hour"\ntasks = 2\ncodec = "deflate"\n')
    assert load_settings(environment=environment) == load_settings(
        flags={**flags, "loader.tasks": "3", "loader.codec": "deflate"}
    )


ADDRESSES = {"metastore": "thrift://127.0.0.1:4711"}


def test_sql_starts_the_thrift_server_only_with_sql_listen() -> None:
    silent = part_command("sql", load_settings(), ADDRESSES).arguments
    requests = part_command("sql", load_settings(flags={"sql.listen": "127.0.0.1:10000"}), ADDRESSES).arguments
    assert "--listen" not in silent
    assert requests[-2:] == ("--listen", "127.0.0.1:10000")


@pytest.mark.parametrize("name", ["metastore", "sql"])
def test_restarted_part_listens_on_its_previous_address(name: str) -> None:
    settings = load_settings(flags={"hive.listen": "127.0.0.1:0", "sql.listen": "127.0.0.1:0"})
    found = {**ADDRESSES, "sql": "127.0.0.1:4712"}
    listens = {"metastore": "127.0.0.1:4711", "sql": "127.0.0.1:4712"}
    words = part_command(name, settings, found).arguments
    assert words[words.index("--listen") + 1] == listens[name]


@pytest.mark.parametrize(
    ("name", "module", "is_server"),
    [
        ("registry", ("headrace", "registry", "serve"), True),
        ("broker", ("headrace", "broker", "serve"), True),
        ("metastore", ("headrace.pipeline.metastore_server",), True),
        ("sql", ("headrace.pipeline.sql_server",), True),
        ("load", ("headrace", "load", "serve", "--data-dir"), True),
    ],
)
def test_part_command_runs_the_module_of_the_part(name: str, module: tuple[str, ...], is_server: bool) -> None:
    command = part_command(name, load_settings(), ADDRESSES)
    assert (command.name, command.arguments[: len(module)], command.is_server) == (name, module, is_server)


@pytest.mark.parametrize("configured", ["", "thrift://metastore:9083"])
def test_sql_uses_the_configured_or_started_metastore(configured: str) -> None:
    settings = load_settings(flags={"hive.metastore": configured} if configured else {})
    words = part_command("sql", settings, {} if configured else ADDRESSES).arguments
    assert words[words.index("--metastore") + 1] == (configured or ADDRESSES["metastore"])


@pytest.mark.parametrize("part", ["audit", "gateway"])
@pytest.mark.parametrize("configured", ["", "kafka-1:9092"])
def test_auditor_and_gateway_use_the_configured_or_started_brokers(part: str, configured: str) -> None:
    settings = load_settings(flags={"kafka.bootstrap_servers": configured} if configured else {})
    words = part_command(part, settings, {**ADDRESSES, "broker": "127.0.0.1:40001"}).arguments
    assert ("127.0.0.1:40001" in words) is not bool(configured)  # the settings reach it by the environment


@pytest.mark.parametrize(
    ("flags", "only", "names"),
    [
        ({}, (), ("registry", "broker", "metastore", "sql", "audit", "console", "gateway", "load")),
        ({"registry.url": "http://r:8081"}, (), ("broker", "metastore", "sql", "audit", "console", "gateway", "load")),
        (
            {"registry.url": "http://r", "kafka.bootstrap_servers": "k:9092", "hive.metastore": "thrift://m:1"},
            (),
            ("sql", "audit", "console", "gateway", "load"),
        ),
        ({"registry.url": "http://r:8081"}, ("load", "registry"), ("registry", "load")),
        (
            {"alerts.notify": "slack://token"},
            (),
            ("registry", "broker", "metastore", "sql", "audit", "console", "gateway", "alerts", "load"),
        ),
        ({"alerts.notify": "slack://token"}, ("sql",), ("sql",)),
    ],
)
def test_parts_of_omits_services_on_other_machines(
    flags: dict[str, str], only: tuple[str, ...], names: tuple[str, ...]
) -> None:
    assert parts_of(load_settings(flags=flags), only) == names


def test_only_parts_without_acknowledged_data_restart() -> None:
    again = {name for name in PARTS if part_command(name, load_settings(), ADDRESSES).restarts}
    assert again == {"metastore", "sql", "audit", "console", "gateway", "alerts"}


@pytest.mark.parametrize(("quick_deaths", "delay_s"), [(1, 0), (2, 1), (3, 2), (4, 4), (7, 32), (8, 60), (99, 60)])
def test_restart_delay_doubles_with_each_quick_death(quick_deaths: int, delay_s: float) -> None:
    assert restart_delay_s(quick_deaths) == delay_s


def test_part_that_had_served_restarts_at_once() -> None:
    assert [consecutive_deaths(before, ready_for_s) for before, ready_for_s in ((0, 0.0), (1, 4.9), (2, 0.0))] == [
        1,
        2,
        3,
    ]
    assert consecutive_deaths(7, 5.0) == 1
    assert restart_delay_s(consecutive_deaths(7, 5.0)) == 0


def test_ready_for_s_counts_from_the_ready_line(tmp_path: Path) -> None:
    arguments = ("broker", "serve", "--data-dir", str(tmp_path), "--broker-listen", "127.0.0.1:0")
    part = Part(PartCommand("broker", ("headrace", *arguments)), tmp_path, os.environ)
    assert part.ready_for_s == 0
    part.wait_until_ready(time.monotonic() + 60, lambda: False)
    assert 0 < part.ready_for_s < time.monotonic() - part.started_at
    part.stop(time.monotonic() + 20)


def test_only_loads_and_the_auditor_run_with_a_higher_niceness(tmp_path: Path) -> None:
    nicenesses = {name: part_command(name, load_settings(), ADDRESSES).niceness for name in PARTS}
    assert {name for name, niceness in nicenesses.items() if niceness > 0} == {"load", "audit"}
    own_niceness = os.getpriority(os.PRIO_PROCESS, 0)
    for niceness in (0, nicenesses["load"]):
        part = Part(PartCommand("load", ("this",), is_server=False, niceness=niceness), tmp_path, os.environ)
        assert os.getpriority(os.PRIO_PROCESS, part.process.pid) == min(19, own_niceness + niceness)
        part.stop(time.monotonic())


@pytest.mark.parametrize("is_stopping", [True, False])
def test_wait_until_ready_raises_keyboard_interrupt_during_a_stop(tmp_path: Path, is_stopping: bool) -> None:
    part = Part(PartCommand("registry", ("headrace", "registry", "serve", "--help-me")), tmp_path, os.environ)
    part.process.wait(60)
    requests = iter([False, *[is_stopping] * 100])
    expected = KeyboardInterrupt if is_stopping else UpError
    with pytest.raises(expected):
        part.wait_until_ready(time.monotonic() + 60, lambda: next(requests))
    part.stop(time.monotonic())


def test_wait_until_ready_reports_the_time_since_the_start(tmp_path: Path) -> None:
    part = Part(PartCommand("silent", ("asyncio",), reads_requests=True), tmp_path, os.environ)
    part.started_at -= 180
    with pytest.raises(UpError, match=r"\b18\d s\b"):
        part.wait_until_ready(time.monotonic(), lambda: False)
    part.stop(time.monotonic())


def test_output_of_a_part_without_ready_line_goes_to_its_log(tmp_path: Path) -> None:
    words = PartCommand("load", ("this",), is_server=False)  # prints the Zen of Python
    load = Part(words, tmp_path, os.environ)
    assert load.process.wait(60) == 0
    assert load.process.stdout is None
    assert load.last_log_line().startswith("Namespaces are one honking great idea")
    assert len(load.log.lines()) > 10
    load.stop(time.monotonic())


def test_stop_kills_children_of_the_part(tmp_path: Path) -> None:
    """Otherwise a JVM outlives its Python process by seconds, and occupies ports and the metastore's database."""
    (tmp_path / "stubborn.py").write_text(
        "import signal, subprocess, sys\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print('ready child=%d' % child.pid, flush=True)\n"
        "child.wait()\n"
    )
    part = Part(PartCommand("stubborn", ("stubborn",)), tmp_path, {**os.environ, "PYTHONPATH": str(tmp_path)})
    child = int(part.wait_until_ready(time.monotonic() + 60, lambda: False)["child"])
    part.request_stop()
    part.stop(time.monotonic())
    assert part.process.returncode == -signal.SIGKILL
    while is_running(child):
        time.sleep(0.01)


def test_part_has_its_own_process_group(tmp_path: Path) -> None:
    part = Part(PartCommand("words", ("this",), is_server=False), tmp_path, os.environ)
    assert os.getpgid(part.process.pid) == part.process.pid
    part.stop(time.monotonic() + 60)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_before_the_parts_start_ends_up_with_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(up, "ensure_java", lambda data_dir: signal.raise_signal(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell sets it for background commands
    try:
        assert main(["up", "--data-dir", str(tmp_path)]) == 0
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


class FakeProcess:
    """A load process that the test controls."""

    running: ClassVar[list[FakeProcess]] = []

    def __init__(self, *_: object) -> None:
        FakeProcess.running.append(self)
        self.process = self
        self.pid = 4711
        self.returncode: int | None = None
        self.log = self
        self.path = ""
        self.is_ready = True
        self.started_at = time.monotonic()
        self.ready_for_s = 100.0
        self.requests: list[str] = []
        self.responses: list[str] = []
        self.turns = 0
        self.turn_responses: list[str] = []
        self.ends_turns = True
        self.is_stopped = False
        self.is_stop_requested = False
        self.rotations = 0

    def poll(self) -> int | None:
        return self.returncode

    def ready(self, wait_s: float) -> dict[str, str] | None:
        return {} if self.is_ready else None

    def send_line(self, line: str) -> None:
        if line == "compact":
            self.turns += 1
            self.turn_responses = ["ended code=0"] if self.ends_turns else []
        else:
            self.requests.append(line)

    def read_line(self) -> str:
        if self.turn_responses:
            return self.turn_responses.pop()
        return self.responses.pop(0) if self.responses else ""

    def last_log_line(self) -> str:
        return "last words"

    def end_reason(self) -> str:
        return "its end"

    def lines(self) -> list[str]:
        return ["topic  rows", "PROBLEM: orders: trouble"]

    def rotate_if_due(self) -> None:
        self.rotations += 1

    def request_stop(self) -> None:
        self.is_stop_requested = True

    def stop(self, deadline: float) -> None:
        self.is_stopped = True
        if self.returncode is None:
            self.returncode = -signal.SIGKILL


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[FakeProcess]:
    """The started processes, oldest first."""
    monkeypatch.setattr(loads, "Part", FakeProcess)
    monkeypatch.setattr(FakeProcess, "running", [])
    return FakeProcess.running


INTERVAL_MS = 600_000


def schedule_of(interval_ms: int, directory: Path) -> tuple[Schedule, int]:
    """Returns a schedule and the time when its first load is due."""
    command = PartCommand("load", ("this",), reads_requests=True)
    schedule = Schedule(command, Duration(interval_ms), directory, {}, UpLog(directory))
    return schedule, next_aligned_ms(int(time.time() * 1000), interval_ms)


def test_schedule_sends_all_loads_to_one_process(tmp_path: Path, processes: list[FakeProcess]) -> None:
    schedule, due_ms = schedule_of(INTERVAL_MS, tmp_path)
    schedule.tick(due_ms - 1)
    assert [one.requests for one in processes] == [[]], "the process starts before a load is due"
    for number in range(3):
        schedule.tick(due_ms + number * INTERVAL_MS)
        processes[0].responses = ["ended code=0"]
        schedule.tick(due_ms + number * INTERVAL_MS + 1)
    assert [one.requests for one in processes] == [["load"] * 3]


def test_schedule_gives_a_compaction_turn_after_each_load(tmp_path: Path, processes: list[FakeProcess]) -> None:
    schedule, due_ms = schedule_of(INTERVAL_MS, tmp_path)
    schedule.tick(due_ms)
    for number in range(3):
        processes[0].responses = ["ended code=1"]
        for later_ms in (1, 2, 3):
            schedule.tick(due_ms + number * INTERVAL_MS + later_ms)
        assert processes[0].turns == number + 1
        schedule.tick(due_ms + (number + 1) * INTERVAL_MS)
    assert processes[0].requests == ["load"] * 4


def test_schedule_requests_a_due_load_during_a_compaction_turn(tmp_path: Path, processes: list[FakeProcess]) -> None:
    """The process then ends its turn, so both requests are open for some seconds."""
    schedule, due_ms = schedule_of(INTERVAL_MS, tmp_path)
    schedule.tick(due_ms - 1)
    processes[0].ends_turns = False
    schedule.tick(due_ms)
    processes[0].responses = ["ended code=0"]
    schedule.tick(due_ms + 1)
    schedule.tick(due_ms + INTERVAL_MS)
    assert (processes[0].requests, processes[0].turns) == (["load", "load"], 1)
    processes[0].responses = ["ended code=0"]  # of the turn
    schedule.tick(due_ms + INTERVAL_MS + 1)
    schedule.tick(due_ms + INTERVAL_MS + 2)
    assert processes[0].turns == 1, "the load still runs"
    processes[0].responses = ["ended code=0"]
    schedule.tick(due_ms + INTERVAL_MS + 3)
    assert processes[0].turns == 2


def test_schedule_gives_no_turn_shortly_before_a_load(tmp_path: Path, processes: list[FakeProcess]) -> None:
    schedule, due_ms = schedule_of(INTERVAL_MS, tmp_path)
    schedule.tick(due_ms)
    processes[0].responses = ["ended code=0"]
    schedule.tick(due_ms + INTERVAL_MS * 95 // 100)
    assert processes[0].turns == 0


@pytest.mark.parametrize(("code", "is_repeated"), [(2, False), (-signal.SIGKILL, False), (EXIT_RESTART, True)])
def test_schedule_logs_a_failed_turn_and_repeats_only_a_turn_that_did_not_run(
    tmp_path: Path, processes: list[FakeProcess], caplog: pytest.LogCaptureFixture, code: int, is_repeated: bool
) -> None:
    schedule, due_ms = schedule_of(INTERVAL_MS, tmp_path)
    schedule.tick(due_ms)
    processes[0].ends_turns = False
    processes[0].responses = ["ended code=0"]
    schedule.tick(due_ms + 1)
    caplog.clear()
    processes[0].returncode = code
    schedule.tick(due_ms + 2)
    assert [one.getMessage().split()[:2] for one in caplog.records] == [["compaction_ended", f"code={code}"]] * (
        not is_repeated
    )
    assert processes[1].turns == is_repeated
    schedule.tick(due_ms + INTERVAL_MS)
    schedule.tick(due_ms + INTERVAL_MS + 1)
    assert processes[1].requests == ["load"]


def test_schedule_skips_a_load_while_one_is_running(
    tmp_path: Path, processes: list[FakeProcess], caplog: pytest.LogCaptureFixture
) -> None:
    schedule, due_ms = schedule_of(INTERVAL_MS, tmp_path)
    for number in range(3):
        schedule.tick(due_ms + number * INTERVAL_MS)
    assert processes[0].requests == ["load"]
    warnings = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert [one.split()[0] for one in warnings] == ["load_still_running"] * 2


def test_schedule_requests_a_due_load_when_the_process_is_ready(tmp_path: Path, processes: list[FakeProcess]) -> None:
    schedule, due_ms = schedule_of(INTERVAL_MS, tmp_path)
    schedule.tick(due_ms - 1)
    processes[0].is_ready = False
    schedule.tick(due_ms)
    assert processes[0].requests == []
    processes[0].is_ready = True
    schedule.tick(due_ms + 1)
    assert processes[0].requests == ["load"]


def test_schedule_stops_its_process_and_rotates_its_log(tmp_path: Path, processes: list[FakeProcess]) -> None:
    schedule, due_ms = schedule_of(INTERVAL_MS, tmp_path)

    def exercise() -> None:
        schedule.rotate_log()
        schedule.request_stop()
        schedule.stop(0.0)

    exercise()  # before the process exists
    schedule.tick(due_ms - 1)
    exercise()
    assert (processes[0].rotations, processes[0].is_stop_requested, processes[0].is_stopped) == (1, True, True)


@pytest.mark.parametrize("is_ready", [True, False])
def test_schedule_replaces_a_process_that_is_never_ready(
    tmp_path: Path, processes: list[FakeProcess], is_ready: bool
) -> None:
    schedule, due_ms = schedule_of(INTERVAL_MS, tmp_path)
    schedule.tick(due_ms - 2)
    processes[0].is_ready = is_ready
    processes[0].started_at -= parts.READY_TIMEOUT_S + 1
    schedule.tick(due_ms - 1)
    schedule.tick(due_ms + 60_000)
    assert processes[0].is_stopped != is_ready
    assert len(processes) == (1 if is_ready else 2)


def test_schedule_continues_after_the_clock_is_set_back(tmp_path: Path, processes: list[FakeProcess]) -> None:
    day_ms = 86_400_000
    schedule, now_ms = schedule_of(INTERVAL_MS, tmp_path)
    schedule.tick(now_ms)
    processes[0].responses = ["ended code=0"]
    schedule.tick(now_ms - day_ms + 1)
    assert processes[0].requests == ["load"]
    processes[0].returncode = -signal.SIGKILL  # the process dies too
    schedule.tick(now_ms - day_ms + 2)
    schedule.tick(now_ms - day_ms + INTERVAL_MS)
    assert [one.requests for one in processes] == [["load"], ["load"]]


@pytest.mark.parametrize(("code", "request_count"), [(0, 1), (1, 1), (2, 1), (-signal.SIGKILL, 2)])
def test_schedule_repeats_a_killed_load_at_once(
    tmp_path: Path, processes: list[FakeProcess], code: int, request_count: int
) -> None:
    schedule, now_ms = schedule_of(INTERVAL_MS, tmp_path)
    schedule.tick(now_ms)
    for later_ms in (200, 400):  # the second consecutive kill delays the next attempt
        processes[-1].returncode = code if processes[-1].requests else None
        schedule.tick(now_ms + later_ms)
    assert sum(len(one.requests) for one in processes) == request_count
    assert all(one.is_stopped for one in processes[:-1]), "stop() ends children of an ended process"
    processes[-1].returncode = None
    schedule.tick(now_ms + 1400)
    assert sum(len(one.requests) for one in processes) == request_count + (code < 0)


@pytest.mark.parametrize("by", ["answer", "end"])
@pytest.mark.parametrize(("code", "level"), [(0, "INFO"), (1, "WARNING"), (2, "WARNING")])
def test_schedule_logs_exit_code_and_problems_of_a_load(
    tmp_path: Path, processes: list[FakeProcess], caplog: pytest.LogCaptureFixture, by: str, code: int, level: str
) -> None:
    """The log is the same whether the process continues or ends with the load."""
    schedule, now_ms = schedule_of(INTERVAL_MS, tmp_path)
    with caplog.at_level("INFO"):
        schedule.tick(now_ms)
        if by == "answer":
            processes[0].responses = [f"ended code={code}"]
        else:
            processes[0].returncode = code
        schedule.tick(now_ms + 1)
    log_lines = [(one.levelname, one.getMessage()) for one in caplog.records]
    log = "log= " if code else ""
    problem = [("WARNING", "load_problem orders: trouble")] if code else []
    assert log_lines == [
        ("INFO", "load_started reason=schedule"),
        (level, f"load_ended code={code} {log}last_line=last words"),
        *problem,
    ]
    assert len(processes) == (1 if by == "answer" else 2)


def test_schedule_repeats_the_request_after_a_restart(
    tmp_path: Path, processes: list[FakeProcess], caplog: pytest.LogCaptureFixture
) -> None:
    schedule, now_ms = schedule_of(INTERVAL_MS, tmp_path)
    schedule.tick(now_ms)
    processes[0].returncode = EXIT_RESTART
    schedule.tick(now_ms + 1)
    assert [one.requests for one in processes] == [["load"], ["load"]]
    processes[1].responses = ["ended code=0"]
    processes[1].returncode = EXIT_RESTART  # after its response: this load must not run twice
    schedule.tick(now_ms + 2)
    schedule.tick(now_ms + 3)
    assert [one.requests for one in processes] == [["load"], ["load"], []]
    assert not [one for one in caplog.records if one.levelname == "WARNING"]


def test_schedule_delays_restarts_of_a_process_that_dies_between_loads(
    tmp_path: Path, processes: list[FakeProcess], caplog: pytest.LogCaptureFixture
) -> None:
    schedule, due_ms = schedule_of(INTERVAL_MS, tmp_path)
    now_ms = due_ms - INTERVAL_MS
    schedule.tick(now_ms)
    for _ in range(2):
        processes[-1].returncode, processes[-1].ready_for_s = 2, 1.0
        schedule.tick(now_ms)
    assert len(processes) == 2
    schedule.tick(now_ms + 999)
    assert len(processes) == 2
    schedule.tick(now_ms + 1000)
    assert len(processes) == 3
    assert [one.getMessage() for one in caplog.records] == [
        "part_died part=load restart_in_s=0 last_line=its end",
        "part_died part=load restart_in_s=1 last_line=its end",
    ]


def test_part_answers_requests_with_lines(tmp_path: Path) -> None:
    (tmp_path / "echo.py").write_text(
        "import sys\n"
        "print('ready echo=1', flush=True)\n"
        "print('in the log', file=sys.stderr, flush=True)\n"
        "for line in sys.stdin:\n"
        "    print('of', line.strip(), file=sys.stderr, flush=True)\n"
        "    print('heard', line.strip(), flush=True)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    part = Part(PartCommand("echo", ("echo",), reads_requests=True), tmp_path, environment)
    assert part.wait_until_ready(time.monotonic() + 60, lambda: False) == {"echo": "1"}
    while not part.log.lines():
        time.sleep(0.01)
    for line in ("one", "two"):
        assert part.read_line() == ""
        part.send_line(line)
        while not (response := part.read_line()):
            time.sleep(0.01)
        assert (response, part.last_log_line()) == (f"heard {line}", f"of {line}")
    part.process.kill()
    part.process.wait(60)
    part.send_line("three")
    part.stop(time.monotonic())


def test_end_reason_mentions_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = Part(PartCommand("registry", ("headrace.no_such_module",)), tmp_path, os.environ)
    with pytest.raises(UpError, match=r"the registry did not start: .*No module named") as caught:
        part.wait_until_ready(time.monotonic() + 60, lambda: False)
    assert "its disk" not in str(caught.value)
    monkeypatch.setattr(parts, "DISK_BYTES_MIN", 2**63)
    assert "its disk has " in part.end_reason()
    part.stop(time.monotonic())


def test_end_reason_of_a_killed_part_names_the_signal(tmp_path: Path) -> None:
    part = Part(PartCommand("registry", ("http.server", "0")), tmp_path, os.environ)
    part.process.kill()
    part.process.wait(60)
    assert part.end_reason().startswith("killed by SIGKILL, manually or by the kernel's OOM killer (log: ")
    part.stop(time.monotonic())


@pytest.mark.parametrize("written", [0, 10])
def test_publish_raises_if_the_addresses_cannot_be_written_completely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """Otherwise commands would connect to the default addresses, which other servers may use."""
    monkeypatch.setattr(os, "pwrite", lambda descriptor, content, offset: written)
    addresses = LiveAddresses(1, "now", "http://r", "b:1", "thrift://m:1", "", "/s", "/w")
    with UpFile(tmp_path / "up.json") as file, pytest.raises(UpError, match=r"up\.json: No space left"):
        file.publish(addresses)


@pytest.mark.parametrize(
    ("cgroups", "exec_pid", "unit"),
    [
        ("0::/system.slice/headrace.service\n", "7", "headrace.service"),
        ("9:cpu:/x\n1:name=systemd:/system.slice/a.slice/headrace@1.service\n0::/\n", "7", "headrace@1.service"),
        ("0::/system.slice/cron.service\n", "1", ""),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/headrace.service\n", "7", ""),
        ("", "7", ""),
    ],
)
def test_unit_is_that_of_a_main_process_of_a_system_service(cgroups: str, exec_pid: str, unit: str) -> None:
    assert systemd_unit({"SYSTEMD_EXEC_PID": exec_pid}, 7, cgroups) == unit


def test_up_log_returns_its_newest_events_and_ignores_torn_lines(tmp_path: Path) -> None:
    log = UpLog(tmp_path)
    log.write(PART_DIED, "killed by SIGKILL\n(log: a b)", part="sql", pid=7, code=-9)
    with (tmp_path / "up.log").open("ab") as file:
        file.write(b"2026-01-31 07:2\n")
    log.write("up_ready")
    log.close()
    died, ready = newest_events(tmp_path)
    assert (died.name, died.values, died.reason) == (
        PART_DIED,
        {"part": "sql", "pid": "7", "code": "-9"},
        "killed by SIGKILL (log: a b)",
    )
    assert abs(died.time_ms - time.time() * 1000) < 60_000
    assert (ready.name, ready.values, ready.reason) == ("up_ready", {}, "")


def test_up_log_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.pipeline.up.part_log.LOG_BYTES_MAX", 1000)
    log = UpLog(tmp_path)
    for _ in range(200):
        log.write("part_died", "x" * 100)
        log.rotate_if_due()
    log.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 6 * 1200


def test_killed_load_process_is_in_the_up_log_and_a_failed_load_is_not(
    tmp_path: Path, processes: list[FakeProcess]
) -> None:
    schedule, due_ms = schedule_of(INTERVAL_MS, tmp_path)
    for code in (2, -signal.SIGKILL):
        schedule.tick(due_ms)
        processes[-1].returncode = code
        schedule.tick(due_ms)
        due_ms += INTERVAL_MS
    assert [event.values["code"] for event in newest_events(tmp_path) if event.name == PART_DIED] == ["-9"]
