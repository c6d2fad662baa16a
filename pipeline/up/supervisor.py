"""`headrace up`: registry, broker, metastore, SQL and scheduled loads on one machine, each a process of its own.

Registry and broker hold what was acknowledged: when one of them ends, the whole does, with a non-zero code. The
metastore and SQL are started again where they listened before, and nobody notices but those who were asking. So is
the process that does the loads, see `schedule`.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime

from headrace.pipeline.up.part import POLL_S, READY_TIMEOUT_S, Part, UpError
from headrace.pipeline.up.part_log import PartLog
from headrace.pipeline.up.plan import LOAD, PartCommand, consecutive_deaths, part_command, parts_of, restart_delay_s
from headrace.pipeline.up.schedule import Schedule
from headrace.pipeline.up.up_file import UpFile
from headrace.settings import Settings
from headrace.settings.addresses import UP_FILE_NAME, LiveAddresses, local_warehouse_directory, sql_socket

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S = 20.0  # a part that has not ended by then is killed; all parts survive that
BACKGROUND_STOP_TIMEOUT_S = 1.0  # beyond what the others took; of work that nobody waits for, and that is begun anew
LOG_CHECK_S = 60.0
# Looks whether there is anything to do by itself: this process has no Java and no Spark.
CLASS_ARCHIVE_NICENESS = 10
CLASS_ARCHIVE = PartCommand(
    "classes", ("headrace.pipeline.class_archive",), is_server=False, niceness=CLASS_ARCHIVE_NICENESS
)


def run_up(
    settings: Settings,
    environment: Mapping[str, str],
    announce: Callable[[LiveAddresses], None],
    only: Collection[str] = (),
) -> None:
    """Starts everything, calls `announce` when all is ready, and returns after a clean stop by SIGINT or SIGTERM.

    Args:
        settings: the settings in force.
        environment: for the children; they read their settings from it as this process did.
        announce: is given the live addresses once.
        only: names of `plan.PARTS`; none are all that the settings do not place elsewhere.

    Raises:
        UpError: another `up` runs here, a part did not start, or one died that is not started again.
    """
    stop = _StopFlag()
    data_dir = settings.data_dir.resolve()
    try:
        (data_dir / "logs").mkdir(parents=True, exist_ok=True)
        local_warehouse_directory(settings).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UpError(f"cannot write to {error.filename}: {error.strerror}") from error
    names = parts_of(settings, only)
    if "sql" in names and "metastore" not in names and not settings.hive.metastore:
        raise UpError("the part sql needs a metastore: start the part metastore as well, or set hive.metastore")
    with UpFile(data_dir / UP_FILE_NAME) as up_file, stop:
        supervisor = _Supervisor(settings, environment, stop)
        try:
            addresses = supervisor.start(names)
            up_file.publish(addresses)
            announce(addresses)
            supervisor.watch()
        except KeyboardInterrupt:
            logger.info("up_stopped reason=signal")
        finally:
            up_file.clear()
            supervisor.stop()


class _Supervisor:
    """The running parts by their names."""

    def __init__(self, settings: Settings, environment: Mapping[str, str], stop: _StopFlag) -> None:
        self._settings = settings
        self._environment = environment
        self._log_dir = settings.data_dir.resolve() / "logs"
        self._stop = stop
        self._parts: dict[str, Part] = {}
        self._schedule: Schedule | None = None
        self._archiving: Part | None = None
        self._found: dict[str, str] = {}
        self._deaths: Counter[str] = Counter()
        self._due: dict[str, float] = {}
        self._logs_due = 0.0
        self._spark_log = PartLog(self._log_dir / "spark.log")  # of all JVMs, which come and go

    def start(self, names: Collection[str]) -> LiveAddresses:
        """The addresses when all parts are ready; of SQL that nobody gave an address, only that it starts."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        first = [name for name in names if name not in ("sql", LOAD)]
        for name in first:
            self._start(name)
        for name in first:
            self._found |= self._parts[name].wait_until_ready(deadline, self._stop.is_set)
            logger.info("part_ready part=%s", name)
        if "sql" in names:
            self._start("sql")  # it asks the metastore
            if self._settings.sql.listen is not None:
                self._found |= self._parts["sql"].wait_until_ready(deadline, self._stop.is_set)
        if LOAD in names:
            command = part_command(LOAD, self._settings, self._found)
            self._schedule = Schedule(command, self._settings.loader.interval, self._log_dir, self._environment)
        if not {"metastore", "sql", LOAD}.isdisjoint(names):
            self._archiving = Part(CLASS_ARCHIVE, self._log_dir, self._environment)
        return LiveAddresses(
            pid=os.getpid(),
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            registry=self._found.get("registry", ""),
            broker=self._found.get("broker", ""),
            metastore=self._found.get("metastore", ""),
            sql=self._found.get("sql", ""),
            sql_socket=str(sql_socket(self._settings)) if "sql" in names else "",
            warehouse=str(local_warehouse_directory(self._settings)),
        )

    def watch(self) -> None:
        """Returns when it is to stop.

        Raises:
            UpError: a part died that is not started again.
        """
        while not self._stop.is_set():
            for name, part in self._parts.items():
                if name not in self._due:
                    self._look_at(name, part)
            for name in [name for name, due in self._due.items() if time.monotonic() >= due]:
                del self._due[name]
                self._start(name)
            if self._schedule is not None:
                self._schedule.tick(int(time.time() * 1000))
            if time.monotonic() >= self._logs_due:
                self._logs_due = time.monotonic() + LOG_CHECK_S
                self._spark_log.limit()
                for part in self._parts.values():
                    part.log.limit()
                if self._schedule is not None:
                    self._schedule.rotate_log()
            self._stop.wait(POLL_S)

    def stop(self) -> None:
        deadline = time.monotonic() + STOP_TIMEOUT_S
        if self._schedule is not None:
            self._schedule.request_stop()
        running = [part for name, part in self._parts.items() if name not in self._due]
        # All are told first: none needs another to end, and each has the whole time for it.
        aside = [self._archiving] if self._archiving is not None else []
        for part in (*running, *aside):
            part.request_stop()
        if self._schedule is not None:
            self._schedule.stop(deadline)
        for part in running:
            part.stop(deadline)
        for part in aside:
            part.stop(time.monotonic() + BACKGROUND_STOP_TIMEOUT_S)
        self._spark_log.close()

    def _start(self, name: str) -> None:
        self._parts[name] = Part(part_command(name, self._settings, self._found), self._log_dir, self._environment)

    def _look_at(self, name: str, part: Part) -> None:
        was_ready, lived_s = part.is_ready, time.monotonic() - part.started_at
        if part.process.poll() is None:
            if part.ready(0) is not None and not was_ready:
                logger.info("part_ready part=%s", name)
            if part.is_ready or lived_s < READY_TIMEOUT_S:
                return
        if self._stop.is_set():
            return
        if not part.command.restarts:
            raise UpError(f"the {name} died: {part.end()}")
        part.stop(time.monotonic())
        self._deaths[name] = consecutive_deaths(self._deaths[name], part.ready_for_s)
        delay_s = restart_delay_s(self._deaths[name])
        self._due[name] = time.monotonic() + delay_s
        logger.warning("part_died part=%s again_in_s=%g said=%s", name, delay_s, part.end())


class _StopFlag:
    """Set by SIGINT or SIGTERM while the context is open."""

    def __init__(self) -> None:
        self._stopped = False
        self._previous: dict[int, object] = {}

    def __enter__(self) -> _StopFlag:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal returned a moment ago

    def _handle(self, number: int, frame: object) -> None:
        self._stopped = True

    def is_set(self) -> bool:
        return self._stopped

    def wait(self, seconds: float) -> None:
        if not self._stopped:
            time.sleep(seconds)
