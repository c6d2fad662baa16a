"""The main loop of `headrace up`: registry, broker, metastore, SQL, auditor, console, gateway and scheduled loads, each
in its process.

Registry and broker hold acknowledged data: when one of them ends, `headrace up` ends with a non-zero code. Metastore
and SQL are restarted on their previous addresses; requests that run or begin meanwhile fail or wait. The load process
is restarted too, see `schedule`.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from headrace.pipeline.up.part import POLL_S, READY_TIMEOUT_S, Part, UpError
from headrace.pipeline.up.part_log import PartLog
from headrace.pipeline.up.plan import (
    ALERTS,
    AUDIT,
    GATEWAY,
    LOAD,
    PartCommand,
    consecutive_deaths,
    part_command,
    parts_of,
    restart_delay_s,
)
from headrace.pipeline.up.schedule import Schedule
from headrace.pipeline.up.up_file import UpFile
from headrace.pipeline.up.up_log import (
    PART_DIED,
    PART_READY,
    PART_STARTED,
    READ_LOG,
    STOPPED_BY_SIGNAL,
    UP_ENDED,
    UP_READY,
    UP_STARTED,
    UpLog,
    systemd_unit,
)
from headrace.settings import Settings
from headrace.settings.addresses import UP_FILE_NAME, LiveAddresses, local_warehouse_directory, sql_socket
from headrace.version import VERSION

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S = 20.0  # a part that is still running then is killed; every part recovers from that when it starts again
# For background work without clients, after all other parts have stopped; the next start repeats the work.
BACKGROUND_STOP_TIMEOUT_S = 1.0
LOG_CHECK_S = 60.0
# The process checks whether the archive is needed: this process has neither Java nor Spark.
CLASS_ARCHIVE_NICENESS = 10
CLASS_ARCHIVE = PartCommand(
    "classes", ("headrace.pipeline.class_archive",), is_server=False, niceness=CLASS_ARCHIVE_NICENESS
)


def run_up(
    settings: Settings,
    environment: Mapping[str, str],
    on_ready: Callable[[LiveAddresses], None],
    only: Collection[str] = (),
) -> None:
    """Starts the parts, calls `on_ready` when the servers are ready (the SQL server only if `sql.listen` is set), and
    returns after a clean stop by SIGINT or SIGTERM.

    Args:
        environment: environment variables of the children, from which they read the same settings.
        on_ready: called once with the addresses, unless a stop is requested before.
        only: names of the parts to run, such as `registry`; empty for all parts that no setting replaces with an
            existing server.

    Raises:
        UpError: a directory cannot be written, the SQL server would have no metastore, another `headrace up` runs here,
            a part did not start, or a part died that is not restarted.
        SettingsError: the warehouse is not local, or its location is invalid.
    """
    stop = _StopFlag()
    data_dir = settings.data_dir.resolve()
    try:
        (data_dir / "logs").mkdir(parents=True, exist_ok=True)
        local_warehouse_directory(settings).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UpError(f"cannot write to {error.filename}: {error.strerror}; choose a writable directory") from error
    names = parts_of(settings, only)
    if "sql" in names and "metastore" not in names and not settings.hive.metastore:
        raise UpError("the part sql needs a metastore: start the part metastore as well, or set hive.metastore")
    with UpFile(data_dir / UP_FILE_NAME) as up_file, stop, closing(UpLog(data_dir / "logs")) as up_log:
        unit = systemd_unit(environment, os.getpid(), _cgroups())
        up_log.write(UP_STARTED, pid=os.getpid(), version=VERSION, parts=",".join(names), unit=unit)
        supervisor = _Supervisor(settings, environment, stop, up_log)
        reason = STOPPED_BY_SIGNAL
        try:
            addresses = supervisor.start(names)
            up_file.publish(addresses)
            up_log.write(UP_READY)
            on_ready(addresses)
            supervisor.watch(lambda pids: up_file.republish(replace(addresses, pids=pids)), addresses.pids)
        except KeyboardInterrupt:
            logger.info("up_stopped reason=signal")
        except BaseException as error:
            reason = str(error) or type(error).__name__
            raise
        finally:
            up_file.clear()
            supervisor.stop()
            up_log.write(UP_ENDED, reason)


def _cgroups() -> str:
    try:
        return Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:  # as on macOS
        return ""


class _Supervisor:
    """Starts, watches, restarts and stops the parts."""

    def __init__(self, settings: Settings, environment: Mapping[str, str], stop: _StopFlag, up_log: UpLog) -> None:
        self._up_log = up_log
        self._settings = settings
        self._environment = environment
        self._log_dir = settings.data_dir.resolve() / "logs"
        self._stop = stop
        self._parts: dict[str, Part] = {}
        self._schedule: Schedule | None = None
        self._class_archive: Part | None = None
        self._addresses: dict[str, str] = {}
        self._deaths: Counter[str] = Counter()
        self._restart_at: dict[str, float] = {}
        self._logs_due = 0.0
        self._spark_log = PartLog(self._log_dir / "spark.log")  # shared by all JVMs, which start and end

    def start(self, names: Collection[str]) -> LiveAddresses:
        """Starts the parts with these names, and returns the addresses when the servers among them are ready. Waits for
        the SQL server only if `sql.listen` is set.

        The addresses are those that the parts use: a server that the settings name precedes a part. Other commands
        with the same data directory may lack the flags of this one.
        """
        deadline = time.monotonic() + READY_TIMEOUT_S
        servers = [name for name in names if name not in ("sql", AUDIT, GATEWAY, ALERTS, LOAD)]
        for name in servers:
            self._start(name)
        for name in servers:
            self._addresses |= self._parts[name].wait_until_ready(deadline, self._stop.is_set)
            self._log_ready(name)
        if "sql" in names:
            self._start("sql")  # needs the metastore's address
            if self._settings.sql.listen is not None:
                self._addresses |= self._parts["sql"].wait_until_ready(deadline, self._stop.is_set)
                self._log_ready("sql")
        clients = [name for name in names if name in (AUDIT, GATEWAY)]  # need the addresses of registry and broker
        for name in clients:
            self._start(name)
        for name in clients:
            self._addresses |= self._parts[name].wait_until_ready(deadline, self._stop.is_set)
            self._log_ready(name)
        if ALERTS in names:
            self._start(ALERTS)  # its first evaluation should find the other parts ready
        if LOAD in names:
            command = part_command(LOAD, self._settings, self._addresses)
            self._schedule = Schedule(
                command, self._settings.loader.interval, self._log_dir, self._environment, self._up_log
            )
        if not {"metastore", "sql", LOAD}.isdisjoint(names):
            self._class_archive = Part(CLASS_ARCHIVE, self._log_dir, self._environment)
        return LiveAddresses(
            pid=os.getpid(),
            started_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            registry=self._settings.registry.url or self._addresses.get("registry", ""),
            broker=self._settings.kafka.bootstrap_servers or self._addresses.get("broker", ""),
            metastore=self._settings.hive.metastore or self._addresses.get("metastore", ""),
            sql=self._addresses.get("sql", ""),
            sql_socket=str(sql_socket(self._settings)) if "sql" in names else "",
            console=self._addresses.get("console", ""),
            gateway=self._addresses.get("gateway", ""),
            warehouse=str(local_warehouse_directory(self._settings)),
            pids=self._pids(),
            load_interval_ms=self._settings.loader.interval.ms if LOAD in names else 0,
        )

    def watch(self, on_restart: Callable[[Mapping[str, int]], None], pids: Mapping[str, int]) -> None:
        """Supervises the parts until a stop is requested.

        Args:
            on_restart: called with the process ids of the parts, by their names, when they have changed.
            pids: the process ids at the start.

        Raises:
            UpError: a part died that is not restarted.
        """
        while not self._stop.is_set():
            for name, part in self._parts.items():
                if name not in self._restart_at:
                    self._check_part(name, part)
            for name in [name for name, due in self._restart_at.items() if time.monotonic() >= due]:
                del self._restart_at[name]
                self._start(name)
            if self._schedule is not None:
                self._schedule.tick(int(time.time() * 1000))
            if pids != (pids := self._pids()):
                on_restart(pids)
            if time.monotonic() >= self._logs_due:
                self._logs_due = time.monotonic() + LOG_CHECK_S
                self._spark_log.rotate_if_due()
                self._up_log.rotate_if_due()
                for part in self._parts.values():
                    part.log.rotate_if_due()
                if self._schedule is not None:
                    self._schedule.rotate_log()
            self._stop.wait(POLL_S)

    def stop(self) -> None:
        deadline = time.monotonic() + STOP_TIMEOUT_S
        if self._schedule is not None:
            self._schedule.request_stop()
        running = [part for name, part in self._parts.items() if name not in self._restart_at]
        # Signals all parts first: none needs another one to stop, and each gets the whole timeout.
        background = [self._class_archive] if self._class_archive is not None else []
        for part in (*running, *background):
            part.request_stop()
        if self._schedule is not None:
            self._schedule.stop(deadline)
        for part in running:
            part.stop(deadline)
        for part in background:
            part.stop(time.monotonic() + BACKGROUND_STOP_TIMEOUT_S)
        self._spark_log.close()

    def _start(self, name: str) -> None:
        self._parts[name] = Part(part_command(name, self._settings, self._addresses), self._log_dir, self._environment)
        self._up_log.write(PART_STARTED, part=name, pid=self._parts[name].process.pid)

    def _pids(self) -> dict[str, int]:
        pids = {name: part.process.pid for name, part in self._parts.items() if name not in self._restart_at}
        load = None if self._schedule is None else self._schedule.pid
        return pids if load is None else {**pids, LOAD: load}

    def _log_ready(self, name: str) -> None:
        logger.info("part_ready part=%s", name)
        self._up_log.write(PART_READY, part=name)

    def _check_part(self, name: str, part: Part) -> None:
        was_ready, uptime_s = part.is_ready, time.monotonic() - part.started_at
        if part.process.poll() is None:
            if part.ready(0) is not None and not was_ready:
                self._log_ready(name)
            if part.is_ready or uptime_s < READY_TIMEOUT_S:
                return
        if self._stop.is_set():
            return
        pid = part.process.pid
        if not part.command.restarts:
            self._up_log.write(PART_DIED, part.end_reason(), part=name, pid=pid, code=part.process.returncode)
            raise UpError(f"the {name} died: {part.end_reason()}; {READ_LOG}")
        part.stop(time.monotonic())
        self._deaths[name] = consecutive_deaths(self._deaths[name], part.ready_for_s)
        delay_s = restart_delay_s(self._deaths[name])
        self._restart_at[name] = time.monotonic() + delay_s
        reason = part.end_reason()
        logger.warning("part_died part=%s restart_in_s=%g last_line=%s", name, delay_s, reason)
        self._up_log.write(
            PART_DIED, reason, part=name, pid=pid, code=part.process.returncode, restart_in_s=f"{delay_s:g}"
        )


class _StopFlag:
    """A flag that SIGINT and SIGTERM set; handles these signals while the context is open."""

    def __init__(self) -> None:
        self._stopped = False
        self._previous: dict[int, object] = {}

    def __enter__(self) -> _StopFlag:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type] # as returned by signal.signal above

    def _handle(self, number: int, frame: object) -> None:
        self._stopped = True

    def is_set(self) -> bool:
        return self._stopped

    def wait(self, seconds: float) -> None:
        if not self._stopped:
            time.sleep(seconds)
