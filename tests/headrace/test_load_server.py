"""The load process of `headrace up` between loads, with fake loads and sessions."""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.cli import load_server
from headrace.cli.command import CommandError
from headrace.cli.load_server import EXIT_RESTART, serve
from headrace.pipeline import load_session
from headrace.pipeline.load_session import may_outlive_load
from headrace.settings import Settings, load_settings

METASTORE = {"hive.metastore": "thrift://127.0.0.1:9083"}


class FakeSession:
    """A fake session. `is_open`: a load has used it; `is_alive`: its JVM runs."""

    def __init__(self, *, outlives_load: bool) -> None:
        assert outlives_load
        self.is_open = False
        self.is_alive = True
        self.use_count = 0
        self.gc_count = 0
        self.is_closed = False

    def collect_garbage(self) -> None:
        self.gc_count += 1

    def close(self) -> None:
        self.is_closed = True


class LoadServer:
    """`headrace load serve` in this process. `at_load` runs in each load and returns its exit code."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.config = directory / "headrace.toml"
        self.set(spark_idle_timeout="30m")
        self.loads = 0
        self.turns: list[bool] = []
        self.at_turn: Callable[[Callable[[], bool]], int] = lambda is_waiting: 0
        self.responses: list[str] = []
        self.at_load: Callable[[], int] = self.with_spark
        self.session: FakeSession
        self._directory, self._monkeypatch = directory, monkeypatch
        monkeypatch.setattr(load_session, "LoadSession", self._open)
        monkeypatch.setattr(load_server, "_import_all", lambda: None)

    def set(self, *, spark_idle_timeout: str) -> None:
        self.config.write_text(
            f'[loader]\nspark_idle_timeout = "{spark_idle_timeout}"\n[hive]\nmetastore = "thrift://m:9083"\n'
        )

    def settings(self) -> Settings:
        return load_settings(config=self.config)

    def request_loads(self, loads: int = 1, *, ends: bool = True, request: str = "load") -> int:
        """Sends requests, then closes standard input if `ends`. Returns the exit code of the process."""
        read, written = zip(os.pipe(), os.pipe(), strict=True)

        def send_requests() -> None:
            with os.fdopen(read[1]) as response_stream, os.fdopen(written[0], "w", buffering=1) as requests:
                responses = [response_stream.readline()]
                for _ in range(loads):
                    requests.write(f"{request}\n")
                    responses.append(response_stream.readline())
                if not ends:
                    responses.append(response_stream.readline())
            self.responses = [line for line in responses if line]

        with (
            (self._directory / "log").open("w") as log,
            os.fdopen(read[0]) as stdin,
            os.fdopen(written[1], "w") as response_stream,
            self._monkeypatch.context() as patched,
        ):
            for name, stream in (("stdin", stdin), ("stdout", response_stream), ("stderr", log)):
                patched.setattr(f"sys.{name}", stream)
            thread = threading.Thread(target=send_requests)
            thread.start()
            try:
                return serve(argparse.Namespace(config=self.config), self.settings(), self._run_once, self._run_turn)
            finally:
                sys.stdout.close()
                thread.join()

    def _run_turn(self, args: object, settings: Settings, session: object, is_waiting: Callable[[], bool]) -> int:
        assert session is self.session
        self.turns.append(is_waiting())
        return self.at_turn(is_waiting)

    def with_spark(self) -> int:
        self.session.is_open = True
        self.session.use_count += 1
        return 0

    def _open(self, *, outlives_load: bool) -> FakeSession:
        self.session = FakeSession(outlives_load=outlives_load)
        return self.session

    def _run_once(self, args: object, settings: Settings, session: object) -> int:
        assert session is self.session
        assert settings == self.settings()
        self.loads += 1
        print("a report")
        return self.at_load()


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoadServer:
    return LoadServer(tmp_path, monkeypatch)


def test_consecutive_loads_share_a_session(process: LoadServer, tmp_path: Path) -> None:
    process.set(spark_idle_timeout="365d")
    assert process.request_loads(3) == 0
    assert (process.loads, process.session.use_count, process.session.gc_count) == (3, 3, 3)
    assert process.session.is_closed
    assert process.responses == ["ready load=waiting\n", *["ended code=0\n"] * 3]
    assert (tmp_path / "log").read_text() == "a report\n" * 3


def test_compaction_turns_use_the_session_of_the_loads(process: LoadServer) -> None:
    process.at_turn = lambda is_waiting: process.with_spark()
    assert process.request_loads(2, request="compact") == 0
    assert (process.loads, process.turns, process.session.use_count) == (0, [False, False], 2)
    assert process.responses == ["ready load=waiting\n", *["ended code=0\n"] * 2]


@pytest.mark.timeout(60)
def test_requested_load_is_known_to_the_running_turn_and_follows_it(process: LoadServer) -> None:
    def wait_for_load(is_waiting: Callable[[], bool]) -> int:
        while not is_waiting():
            time.sleep(0.01)
        return 0

    process.at_turn = wait_for_load
    assert process.request_loads(1, ends=False, request="compact\nload") == 0
    assert (process.loads, len(process.turns)) == (1, 1)


def test_failed_load_ends_the_process(process: LoadServer) -> None:
    """Ends with the error and exit code of the command."""

    def fails() -> int:
        raise CommandError("no broker")

    process.at_load = fails
    with pytest.raises(CommandError):
        process.request_loads(1)
    assert process.session.is_closed


def test_changed_settings_end_the_process(process: LoadServer) -> None:
    def changed() -> int:
        process.set(spark_idle_timeout="31m")
        return 0

    process.at_load = changed
    assert process.request_loads(2) == EXIT_RESTART
    assert process.loads == 1


def test_environment_variables_set_by_a_load_are_not_settings(
    process: LoadServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE__KAFKA__PASSWORD", "")
    monkeypatch.delenv("HEADRACE__KAFKA__PASSWORD")

    def leaves() -> int:
        os.environ["HEADRACE__KAFKA__PASSWORD"] = "of the file"
        return 0

    process.at_load = leaves
    assert process.request_loads(2) == 0
    assert process.loads == 2


def test_process_ends_after_its_jvm_ended(process: LoadServer) -> None:
    def dies_later() -> int:
        monitored = process.session
        process.with_spark()
        monitored.collect_garbage = lambda: setattr(monitored, "is_alive", False)  # type: ignore[method-assign]
        return 0

    process.at_load = dies_later
    assert process.request_loads(2) == EXIT_RESTART
    assert process.loads == 1


def test_process_ends_at_once_if_a_load_leaves_a_broken_session(process: LoadServer) -> None:
    def breaks() -> int:
        process.with_spark()
        process.session.is_alive = False
        return 1

    process.at_load = breaks
    assert process.request_loads(1, ends=False) == EXIT_RESTART
    assert process.session.is_closed


def test_process_ends_at_the_idle_timeout_of_spark(process: LoadServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A load without new messages does not extend the timeout."""
    clock = [0.0]
    monkeypatch.setattr(load_server.time, "monotonic", lambda: clock[0])

    def one_after_the_other() -> int:
        clock[0] += 10 * 60
        return 0 if process.loads > 1 else process.with_spark()

    process.at_load = one_after_the_other
    assert process.request_loads(4, ends=False) == EXIT_RESTART
    assert process.loads == 4, "Spark is last used at 10 minutes; the fourth load ends 30 minutes later"


def test_process_without_spark_has_no_idle_timeout(process: LoadServer) -> None:
    process.at_load = lambda: 0
    process.set(spark_idle_timeout="0s")
    assert process.request_loads(2) == 0
    assert process.loads == 2


def test_process_ends_after_a_load_if_spark_may_not_idle(process: LoadServer) -> None:
    process.set(spark_idle_timeout="9m")  # less than the interval of ten minutes
    assert process.request_loads(1, ends=False) == EXIT_RESTART
    assert process.session.is_closed


@pytest.mark.timeout(60)
def test_sigterm_between_loads_closes_spark(process: LoadServer) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def reported_later() -> int:
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, "SIGTERM ends a running load at once"
        threading.Thread(target=report_when_idle).start()
        return process.with_spark()

    def report_when_idle() -> None:
        while not process.session.gc_count:
            time.sleep(0.01)
        time.sleep(0.1)
        # To this thread, so that it does not end select(2) of the main thread: as when it arrives just before the call.
        signal.raise_signal(signal.SIGTERM)

    process.at_load = reported_later
    with pytest.raises(SystemExit) as ended:
        process.request_loads(1, ends=False)
    assert ended.value.code == EXIT_RESTART
    assert process.session.is_closed
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_sigterm_during_a_garbage_collection_is_handled_afterwards(process: LoadServer) -> None:
    reported = threading.Event()

    def report(phase: str, info: object) -> None:
        if process.session.gc_count and not reported.is_set():
            reported.set()
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0)  # an exception of a signal handler is raised here

    gc.callbacks.append(report)
    try:
        with pytest.raises(SystemExit) as ended:
            process.request_loads(1, ends=False)
    finally:
        gc.callbacks.remove(report)
    assert reported.is_set()
    assert ended.value.code == EXIT_RESTART
    assert process.session.is_closed


@pytest.mark.parametrize(
    ("flags", "may_idle"),
    [
        (METASTORE, True),
        ({}, False),  # an embedded metastore, whose database it has open
        ({**METASTORE, "spark.master": "yarn"}, False),
        ({**METASTORE, "loader.interval": "30m"}, True),
        ({**METASTORE, "loader.interval": "31m"}, False),
        ({**METASTORE, "loader.spark_idle_timeout": "0s"}, False),
    ],
)
def test_may_outlive_load_depends_on_master_metastore_and_timeout(
    tmp_path: Path, flags: dict[str, str], may_idle: bool
) -> None:
    assert may_outlive_load(load_settings(flags={"data_dir": str(tmp_path), **flags})) is may_idle
