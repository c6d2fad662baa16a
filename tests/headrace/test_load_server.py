"""What the process of `headrace up`'s loads does between them, with loads and sessions of paper."""

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


class PaperSession:
    """A session as loads find it; `needs` says whether they use it, `is_alive` whether its JVM lives."""

    def __init__(self, *, outlives_load: bool) -> None:
        assert outlives_load
        self.is_open = False
        self.is_alive = True
        self.metastore_uses = 0
        self.times_tidied = 0
        self.is_closed = False

    def tidy(self) -> None:
        self.times_tidied += 1

    def close(self) -> None:
        self.is_closed = True


class Serving:
    """`headrace load serve` in this process; `at_load` is what its loads do, and their exit code."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.config = directory / "headrace.toml"
        self.set(spark_idle_timeout="30m")
        self.loads = 0
        self.heard: list[str] = []
        self.at_load: Callable[[], int] = self.with_spark
        self.session: PaperSession
        self._directory, self._monkeypatch = directory, monkeypatch
        monkeypatch.setattr(load_session, "LoadSession", self._open)
        monkeypatch.setattr(load_server, "_import_all", lambda: None)

    def set(self, *, spark_idle_timeout: str) -> None:
        self.config.write_text(
            f'[loader]\nspark_idle_timeout = "{spark_idle_timeout}"\n[hive]\nmetastore = "thrift://m:9083"\n'
        )

    def settings(self) -> Settings:
        return load_settings(config=self.config)

    def ask(self, loads: int = 1, *, ends: bool = True) -> int:
        """The exit code of a process that is asked for so many loads, and whose input ends then, or does not."""
        read, written = zip(os.pipe(), os.pipe(), strict=True)

        def asking() -> None:
            with os.fdopen(read[1]) as answers, os.fdopen(written[0], "w", buffering=1) as words:
                heard = [answers.readline()]
                for _ in range(loads):
                    words.write("load\n")
                    heard.append(answers.readline())
                if not ends:
                    heard.append(answers.readline())
            self.heard = [line for line in heard if line]

        with (
            (self._directory / "log").open("w") as log,
            os.fdopen(read[0]) as asked,
            os.fdopen(written[1], "w") as answers,
            self._monkeypatch.context() as patched,
        ):
            for name, stream in (("stdin", asked), ("stdout", answers), ("stderr", log)):
                patched.setattr(f"sys.{name}", stream)
            thread = threading.Thread(target=asking)
            thread.start()
            try:
                return serve(argparse.Namespace(config=self.config), self.settings(), self._run_once)
            finally:
                sys.stdout.close()
                thread.join()

    def with_spark(self) -> int:
        self.session.is_open = True
        self.session.metastore_uses += 1
        return 0

    def _open(self, *, outlives_load: bool) -> PaperSession:
        self.session = PaperSession(outlives_load=outlives_load)
        return self.session

    def _run_once(self, args: object, settings: Settings, session: object) -> int:
        assert session is self.session
        assert settings == self.settings()
        self.loads += 1
        print("a report")
        return self.at_load()


@pytest.fixture
def serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Serving:
    return Serving(tmp_path, monkeypatch)


def test_loads_are_done_one_after_the_other_with_one_session(serving: Serving, tmp_path: Path) -> None:
    serving.set(spark_idle_timeout="365d")
    assert serving.ask(3) == 0
    assert (serving.loads, serving.session.metastore_uses, serving.session.times_tidied) == (3, 3, 3)
    assert serving.session.is_closed
    assert serving.heard == ["ready load=waiting\n", *["ended code=0\n"] * 3]
    assert (tmp_path / "log").read_text() == "a report\n" * 3


def test_a_load_that_could_not_run_ends_the_process(serving: Serving) -> None:
    """With the command's own line and code."""

    def fails() -> int:
        raise CommandError("no broker")

    serving.at_load = fails
    with pytest.raises(CommandError):
        serving.ask(1)
    assert serving.session.is_closed


def test_other_settings_are_for_another_process(serving: Serving) -> None:
    def changed() -> int:
        serving.set(spark_idle_timeout="31m")
        return 0

    serving.at_load = changed
    assert serving.ask(2) == EXIT_RESTART
    assert serving.loads == 1


def test_what_a_load_leaves_in_the_environment_is_no_setting(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE__KAFKA__PASSWORD", "")
    monkeypatch.delenv("HEADRACE__KAFKA__PASSWORD")

    def leaves() -> int:
        os.environ["HEADRACE__KAFKA__PASSWORD"] = "of the file"
        return 0

    serving.at_load = leaves
    assert serving.ask(2) == 0
    assert serving.loads == 2


def test_a_session_whose_jvm_has_ended_is_not_used_again(serving: Serving) -> None:
    def dies_later() -> int:
        monitored = serving.session
        serving.with_spark()
        monitored.tidy = lambda: setattr(monitored, "is_alive", False)  # type: ignore[method-assign]
        return 0

    serving.at_load = dies_later
    assert serving.ask(2) == EXIT_RESTART
    assert serving.loads == 1


def test_a_session_that_is_broken_after_a_load_ends_the_process_at_once(serving: Serving) -> None:
    def breaks() -> int:
        serving.with_spark()
        serving.session.is_alive = False
        return 1

    serving.at_load = breaks
    assert serving.ask(1, ends=False) == EXIT_RESTART
    assert serving.session.is_closed


def test_spark_goes_when_no_load_has_needed_it_for_long_enough(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load without news does not keep it."""
    clock = [0.0]
    monkeypatch.setattr(load_server.time, "monotonic", lambda: clock[0])

    def one_after_the_other() -> int:
        clock[0] += 10 * 60
        return 0 if serving.loads > 1 else serving.with_spark()

    serving.at_load = one_after_the_other
    assert serving.ask(4, ends=False) == EXIT_RESTART
    assert serving.loads == 4, "the first one at 10 minutes, and 30 after it the fourth has ended"


def test_a_process_without_spark_waits_for_ever(serving: Serving) -> None:
    serving.at_load = lambda: 0
    serving.set(spark_idle_timeout="0s")
    assert serving.ask(2) == 0
    assert serving.loads == 2


def test_spark_that_is_not_to_be_kept_goes_after_its_load(serving: Serving) -> None:
    serving.set(spark_idle_timeout="9m")  # loads are ten minutes apart
    assert serving.ask(1, ends=False) == EXIT_RESTART
    assert serving.session.is_closed


def test_sigterm_between_loads_leaves_time_to_end_spark(serving: Serving) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def told_later() -> int:
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, "in the middle of a load it ends at once"
        threading.Thread(target=tell_when_it_idles).start()
        return serving.with_spark()

    def tell_when_it_idles() -> None:
        while signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    serving.at_load = told_later
    with pytest.raises(SystemExit) as ended:
        serving.ask(1, ends=False)
    assert ended.value.code == EXIT_RESTART
    assert serving.session.is_closed
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_sigterm_is_heard_while_garbage_is_collected(serving: Serving) -> None:
    told = threading.Event()

    def tell(phase: str, info: object) -> None:
        if serving.session.times_tidied and not told.is_set():
            told.set()
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0)  # what a handler raises comes here

    gc.callbacks.append(tell)
    try:
        with pytest.raises(SystemExit) as ended:
            serving.ask(1, ends=False)
    finally:
        gc.callbacks.remove(tell)
    assert told.is_set()
    assert ended.value.code == EXIT_RESTART
    assert serving.session.is_closed


@pytest.mark.parametrize(
    ("flags", "is_kept"),
    [
        (METASTORE, True),
        ({}, False),  # it has the metastore's database open
        ({**METASTORE, "spark.master": "yarn"}, False),
        ({**METASTORE, "loader.interval": "30m"}, True),
        ({**METASTORE, "loader.interval": "31m"}, False),
        ({**METASTORE, "loader.spark_idle_timeout": "0s"}, False),
    ],
)
def test_what_idles_must_cost_nobody_anything(tmp_path: Path, flags: dict[str, str], is_kept: bool) -> None:
    assert may_outlive_load(load_settings(flags={"data_dir": str(tmp_path), **flags})) is is_kept
