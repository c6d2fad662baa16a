"""`up.log`: the log of `headrace up` itself, beside the logs of its parts, and a function that reads its events.

    2026-01-31 07:20:04.512+00:00 up_started pid=4711 parts=registry,broker
    2026-01-31 07:21:09.102+00:00 part_died part=sql pid=4802 restart_in_s=0 reason=killed by SIGKILL (log: …)

A line has a time, an event, values without spaces, and at last a reason of one line. The log is rotated as those of the
parts are. An event that cannot be written, such as on a full disk, is dropped: `headrace up` must not end for it.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from headrace.pipeline.up.part_log import PartLog

UP_LOG_NAME: Final = "up.log"
UP_STARTED, UP_READY, UP_ENDED = "up_started", "up_ready", "up_ended"
PART_READY, PART_STARTED, PART_DIED = "part_ready", "part_started", "part_died"
STOPPED_BY_SIGNAL: Final = "stopped by a signal"
"""Reason of `up_ended` after SIGINT or SIGTERM."""
READ_LOG: Final = "read the log, then start headrace up again"
"""End of the reason of `up_ended` after the death of a part that is not restarted."""
TAIL_BYTES: Final = 64 * 1024
_LINE: Final = re.compile(r"(\d{4}-\S+ \S+) (\w+)((?: \w+=\S*)*?)(?: reason=(.*))?")


@dataclass(frozen=True, slots=True)
class UpEvent:
    """A line of `up.log`. `reason` is "" for none."""

    time_ms: int
    name: str
    values: Mapping[str, str]
    reason: str


class UpLog:
    """The log `up.log` in the directory of logs, open for appending."""

    def __init__(self, log_dir: Path) -> None:
        self._log = PartLog(log_dir / UP_LOG_NAME)

    def write(self, event: str, reason: str = "", **values: object) -> None:
        fields = "".join(f" {name}={value}" for name, value in values.items())
        text = f" reason={' '.join(reason.split())}" if reason else ""
        line = f"{datetime.now(UTC).isoformat(' ', timespec='milliseconds')} {event}{fields}{text}\n"
        with contextlib.suppress(OSError):
            os.write(self._log.stream.fileno(), line.encode())

    def rotate_if_due(self) -> None:
        with contextlib.suppress(OSError):
            self._log.rotate_if_due()

    def close(self) -> None:
        self._log.close()


def systemd_unit(environment: Mapping[str, str], pid: int, cgroups: str) -> str:
    """Returns the system service whose main process this is, such as `headrace.service`; "" for none.

    Args:
        environment: of this process. systemd sets the process id for which it is meant (systemd.exec(5)), since child
            processes inherit it.
        pid: of this process.
        cgroups: the content of `/proc/self/cgroup`.
    """
    found = re.search(r"^\d+:(?:name=systemd)?:/system\.slice/(?:\S+/)?([^/\s]+\.service)$", cgroups, re.MULTILINE)
    return found[1] if found and environment.get("SYSTEMD_EXEC_PID") == str(pid) else ""


def newest_events(log_dir: Path) -> Sequence[UpEvent]:
    """Returns the events at the end of `up.log`, at most those in its last `TAIL_BYTES`, oldest first; empty if the
    log does not exist. Ignores lines in another format, such as one that a full disk has truncated."""
    try:
        with (log_dir / UP_LOG_NAME).open("rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - TAIL_BYTES))
            lines = log.read().decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return ()
    return tuple(event for event in map(_parse, lines) if event is not None)


def _parse(line: str) -> UpEvent | None:
    found = _LINE.fullmatch(line)
    if found is None:
        return None
    try:
        time_ms = int(datetime.fromisoformat(found[1]).timestamp() * 1000)
    except ValueError:
        return None
    return UpEvent(time_ms, found[2], dict(re.findall(r"(\w+)=(\S*)", found[3])), found[4] or "")
