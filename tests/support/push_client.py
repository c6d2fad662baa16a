"""Runs the push client of tests: in this process, or as the process that users start."""

from __future__ import annotations

import atexit
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.push.config import PushConfig, parse_config
from headrace.push.sender import Sender
from headrace.push.source import Shared, StateFile
from headrace.push.tailer import Tailer

WAIT_S = 20.0
FAST = {"poll": "5ms", "scan": "10ms", "state": "300ms", "retry": "5ms", "retry_max": "20ms", "multiline_after": "50ms"}


def config_table(url: str, directory: Path, files: dict[str, Any] | None = None, **push: Any) -> dict[str, Any]:
    """The configuration of a client that tails `directory/logs`."""
    rule = {"paths": "logs/*", "topic": "logs", **(files or {})}
    return {
        "push": {"gateway": url, "state_dir": "state", "host_id": "h", "host": "web-1", **FAST, **push},
        "files": [rule],
    }


def eventually(condition: Callable[[], bool], describe: Callable[[], object] = lambda: "") -> None:
    """Waits until a condition holds, and fails after a minute."""
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, describe()
        time.sleep(0.005)


@contextmanager
def running_client(table: dict[str, Any], directory: Path) -> Iterator[Shared]:
    """A client in threads of this process. It stops at the end as at SIGTERM."""
    config = parse_config(table, "push.json", directory)
    shared = Shared()
    config.state_dir.mkdir(exist_ok=True)
    state_file = StateFile(config.state_dir)
    tailer = Tailer(config, shared, state_file.read())
    sender = Sender(config, shared, state_file)
    failed: list[BaseException] = []

    def read() -> None:
        try:
            tailer.run()
        except BaseException as error:
            failed.append(error)

    reader = threading.Thread(target=read, daemon=True)
    sender.thread.start()
    reader.start()
    try:
        yield shared
    finally:
        shared.stopping = True
        reader.join(WAIT_S)
        with shared.changed:
            shared.changed.notify_all()
        sender.thread.join(WAIT_S)
        tailer.close()
    assert not failed, failed
    assert shared.failed is None, shared.failed


def config_of(table: dict[str, Any], directory: Path) -> PushConfig:
    return parse_config(table, "push.json", directory)


class ClientProcess:
    """The client as a separate process. Killed at the end of the tests if a failed test left it running."""

    def __init__(self, table: dict[str, Any], directory: Path, *command: str) -> None:
        self.config = directory / "push.json"
        self.config.write_text(json.dumps(table), encoding="utf-8")
        self.log = (directory / "client.log").open("ab")
        words = command or (sys.executable, "-m", "headrace.push.command")
        self.process = subprocess.Popen([*words, "run", "--config", str(self.config)], stderr=self.log)
        atexit.register(self.process.kill)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        atexit.unregister(self.process.kill)
        self.log.close()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(WAIT_S)
        finally:
            if self.process.returncode is not None:
                atexit.unregister(self.process.kill)
            self.log.close()
