from __future__ import annotations

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
from headrace.settings import Duration, load_settings
from headrace.settings.addresses import LiveAddresses
from support.processes import is_running


@pytest.mark.parametrize(("now_ms", "due_ms"), [(0, 600_000), (599_999, 600_000), (600_000, 1_200_000)])
def test_loads_fall_on_whole_intervals(now_ms: int, due_ms: int) -> None:
    assert next_aligned_ms(now_ms, 600_000) == due_ms


def test_children_read_the_flags_as_variables(tmp_path: Path) -> None:
    flags = {"data_dir": "d", "loader.partition_by": "day", "spark.master": "local[1]"}
    environment = child_environment({"PATH": "/bin", "HEADRACE__LOADER__TASKS": "3"}, flags, tmp_path / "h.toml")
    assert environment["PATH"] == "/bin"
    assert environment["HEADRACE_CONFIG"] == str(tmp_path / "h.toml")
    (tmp_path / "h.toml").write_text('[loader]\npartition_by = "hour"\ntasks = 2\ncodec = "deflate"\n')
    assert load_settings(environment=environment) == load_settings(
        flags={**flags, "loader.tasks": "3", "loader.codec": "deflate"}
    )


FOUND = {"metastore": "thrift://127.0.0.1:4711"}


def test_the_thrift_server_is_there_only_when_asked_for() -> None:
    silent = part_command("sql", load_settings(), FOUND).arguments
    asked = part_command("sql", load_settings(flags={"sql.listen": "127.0.0.1:10000"}), FOUND).arguments
    assert "--listen" not in silent
    assert asked[-2:] == ("--listen", "127.0.0.1:10000")


@pytest.mark.parametrize("name", ["metastore", "sql"])
def test_what_is_started_again_listens_where_it_did(name: str) -> None:
    settings = load_settings(flags={"hive.listen": "127.0.0.1:0", "sql.listen": "127.0.0.1:0"})
    found = {**FOUND, "sql": "127.0.0.1:4712"}
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
def test_each_part_is_a_command_of_its_own(name: str, module: tuple[str, ...], is_server: bool) -> None:
    command = part_command(name, load_settings(), FOUND)
    assert (command.name, command.arguments[: len(module)], command.is_server) == (name, module, is_server)


@pytest.mark.parametrize("elsewhere", ["", "thrift://metastore:9083"])
def test_sql_asks_the_metastore_that_there_is(elsewhere: str) -> None:
    settings = load_settings(flags={"hive.metastore": elsewhere} if elsewhere else {})
    words = part_command("sql", settings, {} if elsewhere else FOUND).arguments
    assert words[words.index("--metastore") + 1] == (elsewhere or FOUND["metastore"])


@pytest.mark.parametrize(
    ("flags", "only", "names"),
    [
        ({}, (), ("registry", "broker", "metastore", "sql", "load")),
        ({"registry.url": "http://r:8081"}, (), ("broker", "metastore", "sql", "load")),
        (
            {"registry.url": "http://r", "kafka.bootstrap_servers": "k:9092", "hive.metastore": "thrift://m:1"},
            (),
            ("sql", "load"),
        ),
        ({"registry.url": "http://r:8081"}, ("load", "registry"), ("registry", "load")),
    ],
)
def test_what_is_elsewhere_is_not_started(flags: dict[str, str], only: tuple[str, ...], names: tuple[str, ...]) -> None:
    assert parts_of(load_settings(flags=flags), only) == names


def test_whatever_holds_what_was_acknowledged_takes_all_with_it() -> None:
    again = {name for name in PARTS if part_command(name, load_settings(), FOUND).restarts}
    assert again == {"metastore", "sql"}


@pytest.mark.parametrize(("quick_deaths", "delay_s"), [(1, 0), (2, 1), (3, 2), (4, 4), (7, 32), (8, 60), (99, 60)])
def test_a_part_that_dies_again_and_again_is_started_less_often(quick_deaths: int, delay_s: float) -> None:
    assert restart_delay_s(quick_deaths) == delay_s


def test_a_part_that_had_served_is_started_again_at_once_however_often_it_dies() -> None:
    assert [consecutive_deaths(before, ready_for_s) for before, ready_for_s in ((0, 0.0), (1, 4.9), (2, 0.0))] == [
        1,
        2,
        3,
    ]
    assert consecutive_deaths(7, 5.0) == 1
    assert restart_delay_s(consecutive_deaths(7, 5.0)) == 0


def test_a_part_serves_from_when_it_is_ready(tmp_path: Path) -> None:
    arguments = ("broker", "serve", "--data-dir", str(tmp_path), "--broker-listen", "127.0.0.1:0")
    part = Part(PartCommand("broker", ("headrace", *arguments)), tmp_path, os.environ)
    assert part.ready_for_s == 0
    part.wait_until_ready(time.monotonic() + 60, lambda: False)
    assert 0 < part.ready_for_s < time.monotonic() - part.started_at
    part.stop(time.monotonic() + 20)


def test_loads_step_back_where_others_want_the_same_cores(tmp_path: Path) -> None:
    nicenesses = {name: part_command(name, load_settings(), FOUND).niceness for name in PARTS}
    assert {name for name, niceness in nicenesses.items() if niceness > 0} == {"load"}
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    for niceness in (0, nicenesses["load"]):
        part = Part(PartCommand("load", ("this",), is_server=False, niceness=niceness), tmp_path, os.environ)
        assert os.getpriority(os.PRIO_PROCESS, part.process.pid) == min(19, usual + niceness)
        part.stop(time.monotonic())


@pytest.mark.parametrize("is_stopping", [True, False])
def test_a_part_that_a_stop_ended_before_it_was_ready_has_not_failed(tmp_path: Path, is_stopping: bool) -> None:
    part = Part(PartCommand("registry", ("headrace", "registry", "serve", "--help-me")), tmp_path, os.environ)
    part.process.wait(60)
    asked = iter([False, *[is_stopping] * 100])
    expected = KeyboardInterrupt if is_stopping else UpError
    with pytest.raises(expected):
        part.wait_until_ready(time.monotonic() + 60, lambda: next(asked))
    part.stop(time.monotonic())


def test_a_loads_report_goes_to_its_log_however_long_it_is(tmp_path: Path) -> None:
    words = PartCommand("load", ("this",), is_server=False)  # prints the Zen of Python
    load = Part(words, tmp_path, os.environ)
    assert load.process.wait(60) == 0
    assert load.process.stdout is None
    assert load.last_log_line().startswith("Namespaces are one honking great idea")
    assert len(load.log.lines()) > 10
    load.stop(time.monotonic())


def test_a_part_takes_what_it_started_with_it(tmp_path: Path) -> None:
    """A JVM outlives its Python by seconds otherwise, and holds ports and the metastore's database."""
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


def test_a_ctrl_c_reaches_parts_through_the_supervisor_alone(tmp_path: Path) -> None:
    part = Part(PartCommand("words", ("this",), is_server=False), tmp_path, os.environ)
    assert os.getpgid(part.process.pid) == part.process.pid
    part.stop(time.monotonic() + 60)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_before_the_parts_are_started_is_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(up, "ensure_java", lambda data_dir: signal.raise_signal(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell leaves it to what it starts in the background
    try:
        assert main(["up", "--data-dir", str(tmp_path)]) == 0
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


class FakeProcess:
    """The process that does loads, as a test drives it."""

    running: ClassVar[list[FakeProcess]] = []

    def __init__(self, *_: object) -> None:
        FakeProcess.running.append(self)
        self.process = self
        self.returncode: int | None = None
        self.log = self
        self.path = ""
        self.is_ready = True
        self.started_at = time.monotonic()
        self.ready_for_s = 100.0
        self.asked: list[str] = []
        self.answers: list[str] = []
        self.is_stopped = False
        self.is_asked_to_stop = False
        self.limited = 0

    def poll(self) -> int | None:
        return self.returncode

    def ready(self, wait_s: float) -> dict[str, str] | None:
        return {} if self.is_ready else None

    def send_line(self, line: str) -> None:
        self.asked.append(line)

    def read_line(self) -> str:
        return self.answers.pop(0) if self.answers else ""

    def last_log_line(self) -> str:
        return "last words"

    def end_reason(self) -> str:
        return "its end"

    def lines(self) -> list[str]:
        return ["topic  rows", "PROBLEM: orders: trouble"]

    def rotate_if_due(self) -> None:
        self.limited += 1

    def request_stop(self) -> None:
        self.is_asked_to_stop = True

    def stop(self, deadline: float) -> None:
        self.is_stopped = True
        if self.returncode is None:
            self.returncode = -signal.SIGKILL


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[FakeProcess]:
    """Those that were started, the newest at the end."""
    monkeypatch.setattr(loads, "Part", FakeProcess)
    monkeypatch.setattr(FakeProcess, "running", [])
    return FakeProcess.running


INTERVAL_MS = 600_000


def every(interval_ms: int, directory: Path) -> tuple[Schedule, int]:
    """A schedule, and when its first load is due."""
    schedule = Schedule(PartCommand("load", ("this",), is_asked=True), Duration(interval_ms), directory, {})
    return schedule, next_aligned_ms(int(time.time() * 1000), interval_ms)


def test_loads_are_of_one_process(tmp_path: Path, processes: list[FakeProcess]) -> None:
    schedule, due_ms = every(INTERVAL_MS, tmp_path)
    schedule.tick(due_ms - 1)
    assert [one.asked for one in processes] == [[]], "it is started before a load is due"
    for number in range(3):
        schedule.tick(due_ms + number * INTERVAL_MS)
        processes[0].answers = ["ended code=0"]
        schedule.tick(due_ms + number * INTERVAL_MS + 1)
    assert [one.asked for one in processes] == [["load"] * 3]


def test_never_two_loads_are_asked_for_at_once(
    tmp_path: Path, processes: list[FakeProcess], caplog: pytest.LogCaptureFixture
) -> None:
    schedule, due_ms = every(INTERVAL_MS, tmp_path)
    for number in range(3):
        schedule.tick(due_ms + number * INTERVAL_MS)
    assert processes[0].asked == ["load"]
    assert [one.getMessage().split()[0] for one in caplog.records] == ["load_still_running"] * 2


def test_a_load_waits_for_a_process_that_is_ready(tmp_path: Path, processes: list[FakeProcess]) -> None:
    schedule, due_ms = every(INTERVAL_MS, tmp_path)
    schedule.tick(due_ms - 1)
    processes[0].is_ready = False
    schedule.tick(due_ms)
    assert processes[0].asked == []
    processes[0].is_ready = True
    schedule.tick(due_ms + 1)
    assert processes[0].asked == ["load"]


def test_the_process_of_loads_is_told_to_end_and_its_log_kept_short(
    tmp_path: Path, processes: list[FakeProcess]
) -> None:
    schedule, due_ms = every(INTERVAL_MS, tmp_path)

    def all_of_it() -> None:
        schedule.rotate_log()
        schedule.request_stop()
        schedule.stop(0.0)

    all_of_it()  # before there is one
    schedule.tick(due_ms - 1)
    all_of_it()
    assert (processes[0].limited, processes[0].is_asked_to_stop, processes[0].is_stopped) == (1, True, True)


@pytest.mark.parametrize("is_ready", [True, False])
def test_another_process_takes_the_place_of_one_that_is_never_ready(
    tmp_path: Path, processes: list[FakeProcess], is_ready: bool
) -> None:
    schedule, due_ms = every(INTERVAL_MS, tmp_path)
    schedule.tick(due_ms - 2)
    processes[0].is_ready = is_ready
    processes[0].started_at -= parts.READY_TIMEOUT_S + 1
    schedule.tick(due_ms - 1)
    schedule.tick(due_ms + 60_000)
    assert processes[0].is_stopped != is_ready
    assert len(processes) == (1 if is_ready else 2)


def test_loads_go_on_when_the_clock_is_set_back(tmp_path: Path, processes: list[FakeProcess]) -> None:
    day_ms = 86_400_000
    schedule, now_ms = every(INTERVAL_MS, tmp_path)
    schedule.tick(now_ms)
    processes[0].answers = ["ended code=0"]
    schedule.tick(now_ms - day_ms + 1)
    assert processes[0].asked == ["load"]
    processes[0].returncode = -signal.SIGKILL  # and so does the process that does them
    schedule.tick(now_ms - day_ms + 2)
    schedule.tick(now_ms - day_ms + INTERVAL_MS)
    assert [one.asked for one in processes] == [["load"], ["load"]]


@pytest.mark.parametrize(("code", "loads_asked"), [(0, 1), (1, 1), (2, 1), (-signal.SIGKILL, 2)])
def test_a_load_that_was_killed_is_taken_up_at_once(
    tmp_path: Path, processes: list[FakeProcess], code: int, loads_asked: int
) -> None:
    schedule, now_ms = every(INTERVAL_MS, tmp_path)
    schedule.tick(now_ms)
    for later_ms in (200, 400):  # the second kill in a row is waited after
        processes[-1].returncode = code if processes[-1].asked else None
        schedule.tick(now_ms + later_ms)
    assert sum(len(one.asked) for one in processes) == loads_asked
    assert all(one.is_stopped for one in processes[:-1]), "what one that ended left running goes"
    processes[-1].returncode = None
    schedule.tick(now_ms + 1400)
    assert sum(len(one.asked) for one in processes) == loads_asked + (code < 0)


@pytest.mark.parametrize("by", ["answer", "end"])
@pytest.mark.parametrize(("code", "level"), [(0, "INFO"), (1, "WARNING"), (2, "WARNING")])
def test_how_a_load_ended_is_told(
    tmp_path: Path, processes: list[FakeProcess], caplog: pytest.LogCaptureFixture, by: str, code: int, level: str
) -> None:
    """Whether the process stays for the next one or ends with it."""
    schedule, now_ms = every(INTERVAL_MS, tmp_path)
    with caplog.at_level("INFO"):
        schedule.tick(now_ms)
        if by == "answer":
            processes[0].answers = [f"ended code={code}"]
        else:
            processes[0].returncode = code
        schedule.tick(now_ms + 1)
    told = [(one.levelname, one.getMessage()) for one in caplog.records]
    log = "log= " if code else ""
    problem = [("WARNING", "load_problem orders: trouble")] if code else []
    assert told == [
        ("INFO", "load_started reason=schedule"),
        (level, f"load_ended code={code} {log}said=last words"),
        *problem,
    ]
    assert len(processes) == (1 if by == "answer" else 2)


def test_what_a_process_leaves_to_another_is_asked_again(
    tmp_path: Path, processes: list[FakeProcess], caplog: pytest.LogCaptureFixture
) -> None:
    schedule, now_ms = every(INTERVAL_MS, tmp_path)
    schedule.tick(now_ms)
    processes[0].returncode = EXIT_RESTART
    schedule.tick(now_ms + 1)
    assert [one.asked for one in processes] == [["load"], ["load"]]
    processes[1].answers = ["ended code=0"]
    processes[1].returncode = EXIT_RESTART  # after it had answered: this load is not done twice
    schedule.tick(now_ms + 2)
    schedule.tick(now_ms + 3)
    assert [one.asked for one in processes] == [["load"], ["load"], []]
    assert not [one for one in caplog.records if one.levelname == "WARNING"]


def test_a_process_that_dies_between_loads_is_started_again_the_later_the_more_often(
    tmp_path: Path, processes: list[FakeProcess], caplog: pytest.LogCaptureFixture
) -> None:
    schedule, due_ms = every(INTERVAL_MS, tmp_path)
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
        "part_died part=load restart_in_s=0 said=its end",
        "part_died part=load restart_in_s=1 said=its end",
    ]


def test_a_part_answers_what_it_is_asked(tmp_path: Path) -> None:
    (tmp_path / "echo.py").write_text(
        "import sys\n"
        "print('ready echo=1', flush=True)\n"
        "print('in the log', file=sys.stderr, flush=True)\n"
        "for line in sys.stdin:\n"
        "    print('of', line.strip(), file=sys.stderr, flush=True)\n"
        "    print('heard', line.strip(), flush=True)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    part = Part(PartCommand("echo", ("echo",), is_asked=True), tmp_path, environment)
    assert part.wait_until_ready(time.monotonic() + 60, lambda: False) == {"echo": "1"}
    while not part.log.lines():
        time.sleep(0.01)
    for line in ("one", "two"):
        assert part.read_line() == ""
        part.send_line(line)
        while not (read_line := part.read_line()):
            time.sleep(0.01)
        assert (read_line, part.last_log_line()) == (f"heard {line}", f"of {line}")
    part.process.kill()
    part.process.wait(60)
    part.send_line("three")
    part.stop(time.monotonic())


def test_a_part_that_could_not_write_why_it_ended_is_explained_by_the_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = Part(PartCommand("registry", ("headrace.no_such_module",)), tmp_path, os.environ)
    with pytest.raises(UpError, match=r"the registry did not start: .*No module named") as told:
        part.wait_until_ready(time.monotonic() + 60, lambda: False)
    assert "its disk" not in str(told.value)
    monkeypatch.setattr(parts, "DISK_BYTES_MIN", 2**63)
    assert "its disk has " in part.end_reason()
    part.stop(time.monotonic())


def test_a_part_that_was_killed_is_not_blamed_for_its_silence(tmp_path: Path) -> None:
    part = Part(PartCommand("registry", ("http.server", "0")), tmp_path, os.environ)
    part.process.kill()
    part.process.wait(60)
    assert part.end_reason().startswith("killed by SIGKILL, manually or by the kernel's OOM killer (log: ")
    part.stop(time.monotonic())


@pytest.mark.parametrize("written", [0, 10])
def test_addresses_that_cannot_be_written_whole_end_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """Commands would else look for the parts at their default addresses, where somebody else may be."""
    monkeypatch.setattr(os, "pwrite", lambda descriptor, content, offset: written)
    addresses = LiveAddresses(1, "now", "http://r", "b:1", "thrift://m:1", "", "/s", "/w")
    with UpFile(tmp_path / "up.json") as file, pytest.raises(UpError, match=r"up\.json: No space left"):
        file.publish(addresses)
