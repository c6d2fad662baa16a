"""The context that the sources of a status share: settings, time, and values that are read once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from headrace.kafka_wire.cluster import KafkaCluster
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.commit.state import LoaderState
from headrace.loader.run_log import YIELDED, RunLine, newest_lines
from headrace.loader.storage.local.lease import LeaseHolder, lease_holder
from headrace.pipeline.load import commit_log, kafka_cluster, run_log_path
from headrace.pipeline.status.probe import TIMEOUT_S, Health, ProbeResult, probe_brokers
from headrace.pipeline.storage import lease_path
from headrace.pipeline.up.plan import AUDIT
from headrace.pipeline.up.up_log import UP_STARTED, UpEvent, newest_events
from headrace.settings import Settings
from headrace.settings.addresses import LiveAddresses, UpFileContent, read_up_file, resolve_bootstrap_servers

T = TypeVar("T")

RUNS_READ: Final = 200
"""Lines of the run log that are read: enough to find the last success behind a day of failed loads."""
LATE_FACTOR: Final = 3
"""Loads are late if none has ended for more than this number of intervals."""
CLOCK_DIFFERENCE_MS_MAX: Final = 60_000
"""Smaller differences of this machine's clock are no finding."""
RESPONSE_TIMEOUT_S: Final = 10.0
"""Time limit of a request for the offsets of all partitions, from a broker that has just answered a small one."""


class SourceSkipped(Exception):
    """A value that the caller of `platform_status` does not read. Sources that need it are skipped; that is no failure.
    The message is the reason."""


@dataclass(frozen=True, slots=True)
class _Failed:
    error: Exception


class StatusContext:
    """The settings and the time of one status, and values that its sources share. A value that could not be read is not
    requested again: each use raises the same error."""

    def __init__(
        self,
        settings: Settings,
        now_ms: int | None = None,
        expects_servers: bool = True,
        open_log: Callable[[], CommitLog] | None = None,
    ) -> None:
        self.settings = settings
        self._open_log = open_log
        self.expects_servers = expects_servers
        self.now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        self._values: dict[str, Any] = {}

    def close(self) -> None:
        """Closes the connections to the brokers."""
        if "cluster" in self._values and isinstance(self._values["cluster"], KafkaCluster):
            self._values["cluster"].close()

    @property
    def log_dir(self) -> Path:
        """The directory of the logs of `headrace up` and its parts."""
        return self.settings.data_dir.resolve() / "logs"

    @property
    def up_file(self) -> UpFileContent | None:
        """The content of `up.json`."""
        return self.once("up_file", lambda: read_up_file(self.settings))

    @property
    def live(self) -> LiveAddresses | None:
        """The addresses of the running `headrace up`; None if none runs or it is still starting."""
        return self.up_file.addresses if self.up_file is not None and self.up_file.is_held else None

    @property
    def up_events(self) -> Sequence[UpEvent]:
        """The newest events in the log of `headrace up`, oldest first."""
        return self.once("up_events", lambda: newest_events(self.log_dir))

    @property
    def start_up(self) -> str:
        """The command that starts `headrace up`: through systemd if systemd started the last one."""
        unit = self._up_unit
        return f"systemctl start {unit}" if unit else "headrace up"

    @property
    def restart_up(self) -> str:
        unit = self._up_unit
        return f"systemctl restart {unit}" if unit else "restart headrace up"

    @property
    def _up_unit(self) -> str:
        starts = [event for event in self.up_events if event.name == UP_STARTED]
        return starts[-1].values.get("unit", "") if starts else ""

    @property
    def auditor_since_ms(self) -> int | None:
        """The start of the running `headrace up`, if it runs the auditor; None otherwise. The auditor may be restarting
        at the moment."""
        if self.live is None:
            return None
        events, starts = self.up_events, [number for number, one in enumerate(self.up_events) if one.name == UP_STARTED]
        since_start = events[starts[-1] :] if starts else events
        is_run = AUDIT in self.live.pids or any(event.values.get("part") == AUDIT for event in since_start)
        started_ms = events[starts[-1]].time_ms if starts else 0  # the log has been rotated since
        return started_ms if is_run else None

    def is_expected(self, named: str, part: str) -> bool:
        """Whether registry or broker should run. A running `headrace up` may run only some parts, and use no server in
        place of the others. If neither `up` nor a load has ever run here, a registry may run without a broker, and a
        broker without a registry.

        Args:
            named: the setting that names existing servers; "" for none.
            part: `registry` or `broker`.
        """
        if named:
            return True
        if self.live is not None:
            return bool(getattr(self.live, part))
        return self.expects_servers and (part in self.served_parts or not self.served_parts)

    @property
    def served_parts(self) -> frozenset[str]:
        """The servers, `registry` or `broker`, that have run alone on this data directory; none if `headrace up` or a
        load has run here."""
        registry, data_dir = self.settings.registry, self.settings.data_dir
        if self.up_events or self.runs:
            return frozenset()
        stored = {
            "registry": bool(registry.database_url) or (data_dir / "registry.db").exists(),
            "broker": (data_dir / "broker").is_dir(),
        }
        return frozenset(part for part, is_stored in stored.items() if is_stored)

    @property
    def load_interval_ms(self) -> int:
        """The time between loads: that of the running `headrace up` if it runs loads, else `loader.interval`."""
        live = self.live
        return live.load_interval_ms if live is not None and live.load_interval_ms else self.settings.loader.interval.ms

    @property
    def runs(self) -> Sequence[RunLine]:
        """The newest loads in the run log that did not yield, oldest first; empty without a run log."""
        path = run_log_path(self.settings)
        lines = () if path is None else self.once("runs", lambda: newest_lines(path, RUNS_READ))
        return tuple(line for line in lines if line.outcome != YIELDED)

    @property
    def load_holder(self) -> LeaseHolder | None:
        """The running load of this machine; None if none runs."""
        return self.once("load_holder", lambda: lease_holder(lease_path(self.settings)))

    @property
    def cluster(self) -> KafkaCluster:
        """A client of the brokers, for one thread at a time."""
        return self.once("cluster", lambda: kafka_cluster(self.settings, RESPONSE_TIMEOUT_S))

    @property
    def brokers(self) -> ProbeResult:
        """Whether the brokers answer. The source `parts` reports it; others skip requests to brokers that do not."""
        if not self.is_expected(self.settings.kafka.bootstrap_servers, "broker"):
            return ProbeResult(resolve_bootstrap_servers(self.settings), Health.DOWN, "no broker is configured")

        def probed() -> ProbeResult:
            with kafka_cluster(self.settings, TIMEOUT_S) as cluster:
                return probe_brokers(cluster, resolve_bootstrap_servers(self.settings))

        return self.once("brokers", probed)

    @property
    def log(self) -> CommitLog:
        """The commit log, opened for reading and with a supported format."""

        def opened() -> CommitLog:
            log = commit_log(self.settings, read_only=True)
            log.check_format(writing=False)
            return log

        return self.once("log", self._open_log or opened)

    @property
    def state(self) -> LoaderState:
        """The state of the loader after its newest commit; without commits the empty state."""
        return self.once("state", self.log.read_state)

    def once(self, name: str, read: Callable[[], T]) -> T:
        """Returns the value `name`, which `read` returned in the first call with this name; raises its error again."""
        if name not in self._values:
            try:
                self._values[name] = read()
            except Exception as error:  # raised below, here and for each further source
                self._values[name] = _Failed(error)
        value = self._values[name]
        if isinstance(value, _Failed):
            raise value.error
        return value  # type: ignore[no-any-return]  # of this name
