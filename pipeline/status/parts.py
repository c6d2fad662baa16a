"""The parts of the platform: `headrace up`, registry, brokers, metastore, SQL, console and gateway. Each gets a
request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from headrace.pipeline.server_metrics import metrics_path, read_metrics
from headrace.pipeline.status.context import CLOCK_DIFFERENCE_MS_MAX, StatusContext
from headrace.pipeline.status.finding import SourceReport, StatusFact, StatusFinding, finding
from headrace.pipeline.status.metric import StatusMetric
from headrace.pipeline.status.probe import (
    TIMEOUT_S,
    Health,
    ProbeResult,
    probe_metastore,
    probe_pages,
    probe_registry,
    probe_sql,
)
from headrace.pipeline.status.processes import (
    connections_by_port,
    is_stopped,
    resident_bytes,
    stopped_processes,
)
from headrace.pipeline.status.responses import error_shares
from headrace.pipeline.status.wording import age_text, count_text, time_text
from headrace.pipeline.up.part import READY_TIMEOUT_S
from headrace.pipeline.up.up_log import (
    PART_DIED,
    PART_READY,
    PART_STARTED,
    READ_LOG,
    STOPPED_BY_SIGNAL,
    UP_ENDED,
    UP_LOG_NAME,
    UP_STARTED,
    UpEvent,
)
from headrace.registry.client.of_settings import registry_client
from headrace.settings import Settings
from headrace.settings.addresses import LiveAddresses, resolve_metastore
from headrace.settings.masking import mask_passwords

UP, REGISTRY, BROKER, METASTORE = "headrace up", "registry", "broker", "metastore"
SQL, AUDIT, CONSOLE, GATEWAY, ALERTS, LOAD = "sql", "audit", "console", "gateway", "alerts", "load"
SETTINGS_OF: Final = {
    REGISTRY: "registry.url",
    BROKER: "kafka.bootstrap_servers",
    METASTORE: "hive.metastore",
    SQL: "sql.listen",
    CONSOLE: "console.listen",
    GATEWAY: "gateway.listen",
}
"""The setting that names an existing server of a part."""
REPLICATION_LAG_S_MAX: Final = 300
YEAR_MS: Final = 365 * 86_400_000
DEATHS_SHOWN_MS: Final = 3_600_000
"""How long a death is a finding although the part was restarted."""
RESTARTED: Final = frozenset({METASTORE, SQL, AUDIT, CONSOLE, GATEWAY, ALERTS, LOAD})
"""Parts that a running `headrace up` restarts."""


@dataclass(frozen=True, slots=True)
class _Up:
    """The state of `headrace up` on the data directory: `live` are the addresses of a running one, `left_behind` those
    of one that was killed, `events` the events in its log since its last start."""

    live: LiveAddresses | None
    is_starting: bool
    left_behind: LiveAddresses | None
    events: Sequence[UpEvent]

    @property
    def started_ms(self) -> int | None:
        return self.events[0].time_ms if self.events and self.events[0].name == UP_STARTED else None

    def last_event(self, part: str) -> UpEvent | None:
        return next((event for event in reversed(self.events) if event.values.get("part") == part), None)

    def last_death(self, part: str) -> UpEvent | None:
        return next(
            (one for one in reversed(self.events) if one.name == PART_DIED and one.values.get("part") == part), None
        )

    def ready_since_ms(self, part: str) -> int | None:
        event = self.last_event(part)
        return event.time_ms if event is not None and event.name == PART_READY else None


def parts(context: StatusContext) -> SourceReport:
    """Reports whether each part responds, and the state of the process of a part that does not."""
    up = _up(context)
    probed = probed_parts(context)
    facts, findings = [_up_fact(up), _memory_fact(up), _jvm_fact(up, context)], _process_findings(up, probed)
    stopped_parts = {found.subject for found in findings}
    unreachable: list[str] = []
    for name, result in probed.items():
        facts.append(_part_fact(name, result, up))
        if name in stopped_parts or result.health == Health.UP:
            continue
        if result.health == Health.DOWN and up.live is None and not _is_named(context.settings, name):
            unreachable.append(f"{name} at {mask_passwords(result.address)}")
            continue
        findings.append(_part_finding(name, result, up, context))
    findings += _clock_findings(probed.get(REGISTRY), context)
    findings += _audit_log_findings(probed.get(REGISTRY))
    findings += _replica_findings(probed.get(REGISTRY), context.now_ms)
    ratios, errors = error_shares(context, probed)
    facts.append(StatusFact("error responses", "", tuple(ratios)))
    findings += errors
    findings += _up_findings(up, unreachable, context)
    findings += _recent_deaths(up, {found.subject for found in findings}, context.now_ms)
    return SourceReport(tuple(facts), tuple(findings))


def _up(context: StatusContext) -> _Up:
    file, events = context.up_file, context.up_events
    starts = [number for number, event in enumerate(events) if event.name == UP_STARTED]
    since_start = events[starts[-1] :] if starts else events
    if file is None or not file.is_held:
        return _Up(None, False, file.addresses if file is not None else None, since_start)
    return _Up(file.addresses, file.addresses is None, None, since_start)


def probed_parts(context: StatusContext) -> dict[str, ProbeResult]:
    """Returns the results of the probes of all parts by name. Sends their requests once."""
    return context.once("probed", lambda: _probe(context))


def _probe(context: StatusContext) -> dict[str, ProbeResult]:
    """Sends a request to each part, to all at the same time."""
    settings, live = context.settings, context.live
    metastore = resolve_metastore(settings)

    def registry() -> ProbeResult:
        with registry_client(settings, TIMEOUT_S) as client:
            return probe_registry(client)

    probes: dict[str, Callable[[], ProbeResult]] = {}
    if context.is_expected(settings.registry.url, REGISTRY):
        probes[REGISTRY] = registry
    if context.is_expected(settings.kafka.bootstrap_servers, BROKER):
        probes[BROKER] = lambda: context.brokers
    if metastore is not None:
        probes[METASTORE] = lambda: probe_metastore(metastore)
    if live is not None and live.sql_socket:
        probes[SQL] = lambda: probe_sql(live)
    if live is not None and live.console:
        probes[CONSOLE] = lambda: probe_pages(live.console)
    if live is not None and live.gateway:
        probes[GATEWAY] = lambda: probe_pages(live.gateway)
    with ThreadPoolExecutor(max(1, len(probes))) as pool:
        futures = {name: pool.submit(_caught, name, probe) for name, probe in probes.items()}
        return {name: future.result() for name, future in futures.items()}


def _caught(name: str, probe: Callable[[], ProbeResult]) -> ProbeResult:
    """Returns the result of a probe; an error, such as one of the settings, becomes a result."""
    try:
        return probe()
    except Exception as error:  # the other probes must still be reported
        return ProbeResult(name, Health.FAILING, str(error) or type(error).__name__)


def _is_named(settings: Settings, part: str) -> bool:
    """Whether the settings name a server in place of a part of `headrace up`."""
    named = {
        REGISTRY: settings.registry.url,
        BROKER: settings.kafka.bootstrap_servers,
        METASTORE: settings.hive.metastore,
    }
    return bool(named.get(part))


def _process_findings(up: _Up, probed: Mapping[str, ProbeResult]) -> list[StatusFinding]:
    """Returns a finding for each part with a stopped process, whether it answers or not."""
    if up.live is None:
        return []
    found = []
    for name, group in up.live.pids.items():
        stopped = stopped_processes(group)
        if stopped:
            pids = ", ".join(map(str, stopped))
            named = f"process {pids} is stopped" if len(stopped) == 1 else f"processes {pids} are stopped"
            effect = f"; the part {probed[name].reason}" if name in probed and probed[name].reason else ""
            show = f"ps -o pid,stat,args -p {pids.replace(' ', '')}"
            found.append(
                finding("part-stopped", name, named + effect, show=show, repair=f"kill -CONT {pids.replace(',', '')}")
            )
    if is_stopped(up.live.pid):
        problem = f"process {up.live.pid} is stopped: no load starts, and no part is restarted"
        repair = f"kill -CONT {up.live.pid}"
        found.append(finding("part-stopped", UP, problem, show=f"ps -o pid,stat,args -p {up.live.pid}", repair=repair))
    return found


def _part_finding(name: str, result: ProbeResult, up: _Up, context: StatusContext) -> StatusFinding:
    """Returns the finding about a part that does not answer, or answers with an error."""
    address = mask_passwords(result.address)
    log = f"less {context.log_dir / name}.log"
    own = up.live is not None and name in up.live.pids
    last = up.last_event(name)
    if result.lacks_database:
        return finding("database-down", name, f"{address} answers, and its database does not: {result.reason}")
    if result.health == Health.DEGRADED:
        return finding("server-down", name, result.reason)
    if result.health == Health.SILENT and not own:
        return finding("part-silent", name, f"{address} {result.reason}")
    if result.health == Health.SILENT:
        return finding("part-silent", name, f"{address} {result.reason}", show=log, repair=context.restart_up)
    if result.health == Health.FAILING:
        return finding("part-failing", name, f"{address}: {result.reason}", show=log if own else "")
    if up.live is None or last is None:
        repair = f"start it on its host, or correct {SETTINGS_OF[name]}"
        return finding("part-down", name, f"{address} {result.reason}", repair=repair)
    if last.name == PART_STARTED:
        problem = f"{address} {result.reason}; headrace up started it and waits for it"
        died = up.last_death(name)
        problem += f"; it died before: {died.reason}" if died is not None else ""
        return finding("part-starting", name, problem, show=log, since_ms=last.time_ms)
    if last.name == PART_DIED and name in RESTARTED:
        repair = (
            f"none: headrace up restarts it in {last.values.get('restart_in_s', '0')} s; if it dies again, see its log"
        )
        return finding("part-down", name, f"died: {last.reason}", show=log, repair=repair, since_ms=last.time_ms)
    return finding("part-down", name, f"{address} {result.reason}", show=log, repair=context.restart_up)


def _up_findings(up: _Up, unreachable: Sequence[str], context: StatusContext) -> list[StatusFinding]:
    """Returns the finding about a `headrace up` that does not run, if it should run.

    It should run if the last one did not end by a signal, or if registry or broker are nowhere else.
    """
    if up.live is not None:
        return []
    show, start = f"tail {context.log_dir / UP_LOG_NAME}", context.start_up
    if up.is_starting:
        return _starting(up, show, context.now_ms)
    last = up.events[-1] if up.events else None
    if up.left_behind is not None:
        died = "; ".join(event.reason for event in up.events if event.name == PART_DIED)
        problem = f"process {up.left_behind.pid} was killed, and its parts ended with it"
        since = last.time_ms if last is not None else None
        problem += f"; its log ends {time_text(since)}" if since is not None else ""
        return [finding("up-down", UP, problem + (f"; before: {died}" if died else ""), show=show, repair=start)]
    if last is not None and last.name == UP_ENDED and last.reason != STOPPED_BY_SIGNAL:
        problem, _, remedy = last.reason.partition("; ")
        remedy = "read its log" if remedy == READ_LOG else remedy
        repair = f"{remedy}; then {start}" if remedy else start
        return [finding("up-down", UP, f"it ended: {problem}", show=show, repair=repair, since_ms=last.time_ms)]
    if last is not None and last.name != UP_ENDED:
        problem = f"it was killed; the last line of its log: {last.name} {last.reason}"
        return [finding("up-down", UP, problem, show=show, repair=start)]
    if not unreachable:
        return []
    if last is None:
        return _never_started(unreachable, context)
    problem = f"it was stopped by a signal; no {', no '.join(unreachable)}"
    return [finding("up-down", UP, problem, show=show, repair=start, since_ms=last.time_ms)]


def _never_started(unreachable: Sequence[str], context: StatusContext) -> list[StatusFinding]:
    """Returns the findings that registry or broker do not respond, if `headrace up` has never run.

    Args:
        unreachable: the names of the parts with their addresses, as in `broker at 127.0.0.1:9092`.
    """
    if not context.served_parts:
        return [finding("up-down", UP, f"it has not run on this data directory; no {', no '.join(unreachable)}")]
    return [
        finding("part-down", name, f"no server at {address}", repair=f"headrace {name} serve, or headrace up")
        for name, _, address in (one.partition(" at ") for one in unreachable)
    ]


def _clock_findings(registry: ProbeResult | None, context: StatusContext) -> list[StatusFinding]:
    """Returns a finding for each registry server with another time than this machine's clock."""
    dates_ms = {} if registry is None else registry.dates_ms
    differences_ms = {url: context.now_ms - date_ms for url, date_ms in dates_ms.items()}
    return [
        finding(
            "clock-differs",
            "clock of this machine",
            f"{age_text(abs(ms))} {'ahead of' if ms > 0 else 'behind'} that of {url}; ages and expiry are as wrong",
        )
        for url, ms in differences_ms.items()
        if abs(ms) > CLOCK_DIFFERENCE_MS_MAX
    ]


def _audit_log_findings(registry: ProbeResult | None) -> list[StatusFinding]:
    """Returns a finding for each registry server with changes that are missing in its audit log."""
    lost = {} if registry is None else registry.audit_lines_lost
    return [
        finding(
            "audit-log-incomplete",
            "audit log of the registry",
            f"{count_text(lines, 'change')} could not be written to it since {mask_passwords(url)} started",
        )
        for url, lines in lost.items()
    ]


def _replica_findings(registry: ProbeResult | None, now_ms: int) -> list[StatusFinding]:
    """Returns a finding for each registry server on a replica that has not copied its source for long."""
    lags_s = {} if registry is None else registry.replication_lags_s
    return [
        finding(
            "replica-late",
            f"replica at {mask_passwords(url)}",
            f"{age_text(round(lag_s * 1000))} behind: it lacks newer schemas of its source"
            if lag_s * 1000 < now_ms - YEAR_MS
            else "it has never been copied completely",
            since_ms=max(0, now_ms - round(lag_s * 1000)) or None,
        )
        for url, lag_s in lags_s.items()
        if lag_s > REPLICATION_LAG_S_MAX
    ]


def _starting(up: _Up, show: str, now_ms: int) -> list[StatusFinding]:
    since = up.started_ms
    pid = int(up.events[0].values.get("pid", "0")) if since is not None else 0
    if pid and is_stopped(pid):
        problem = f"process {pid} is stopped during its start"
        return [finding("part-stopped", UP, problem, show=show, repair=f"kill -CONT {pid}")]
    if since is not None and now_ms - since > READY_TIMEOUT_S * 1000:
        return [finding("part-silent", UP, "it starts for longer than its time limit", show=show, since_ms=since)]
    return [finding("part-starting", UP, "it starts, and its parts are not ready yet", show=show, since_ms=since)]


def _recent_deaths(up: _Up, reported: set[str], now_ms: int) -> list[StatusFinding]:
    """Returns a finding for each part that died in the last hour and was restarted."""
    if up.live is None:
        return []
    deaths: dict[str, list[UpEvent]] = {}
    for event in up.events:
        if event.name == PART_DIED and event.time_ms > now_ms - DEATHS_SHOWN_MS:
            deaths.setdefault(event.values.get("part", ""), []).append(event)
    return [
        finding(
            "part-restarted",
            name,
            f"died {count_text(len(events), 'time')} in the last hour, and was restarted; last reason: "
            f"{events[-1].reason}",
            since_ms=events[-1].time_ms,
        )
        for name, events in deaths.items()
        if name not in reported
    ]


def _up_fact(up: _Up) -> StatusFact:
    runs = up.live is not None
    if up.live is not None:
        text = f"process {up.live.pid} since {up.live.started_at}"
    else:
        text = "starting" if up.is_starting else "not running"
    return StatusFact(UP, text, (_metric(UP, runs),))


def _memory_fact(up: _Up) -> StatusFact:
    """Returns the memory of each part of the running `headrace up`; no text and no metrics if none runs here."""
    if up.live is None:
        return StatusFact("memory", "")
    memory = resident_bytes(up.live.pids.values())
    of_part = {name: memory[group] for name, group in up.live.pids.items() if group in memory}
    text = ", ".join(f"{name} {size / 1024**2:,.0f} MiB" for name, size in of_part.items())
    metrics = [
        StatusMetric("headrace_up_part_resident_memory_bytes", size, (("part", name),))
        for name, size in of_part.items()
    ]
    connections = connections_by_port()
    metrics += [
        StatusMetric("headrace_up_part_connections", connections.get(port, 0), (("part", name),))
        for name, port in _ports(up.live).items()
    ]
    return StatusFact("memory", text, tuple(metrics))


def _jvm_fact(up: _Up, context: StatusContext) -> StatusFact:
    """Returns the heap of metastore and SQL server, and the numbers of queries, if they run here."""
    metrics, texts = [], []
    for part in (METASTORE, SQL):
        pid = None if up.live is None else up.live.pids.get(part)
        found = None if pid is None else read_metrics(metrics_path(context.log_dir, part), pid, context.now_ms)
        if found is None:
            continue
        labels = (("part", part),)
        metrics += [
            StatusMetric("headrace_up_part_heap_used_bytes", found.heap_used_bytes, labels),
            StatusMetric("headrace_up_part_heap_max_bytes", found.heap_max_bytes, labels),
        ]
        texts.append(f"{part} {found.heap_used_bytes / 1024**2:,.0f} of {found.heap_max_bytes / 1024**2:,.0f} MiB")
        if found.queries is not None:
            totals = found.queries
            metrics += [
                StatusMetric("headrace_sql_queries_running", totals.running),
                StatusMetric("headrace_sql_queries_total", totals.succeeded, (("outcome", "succeeded"),)),
                StatusMetric("headrace_sql_queries_total", totals.failed, (("outcome", "failed"),)),
            ]
            texts.append(f"{totals.running:,} queries running, {totals.failed:,} failed")
    return StatusFact("heap", "; ".join(texts), tuple(metrics))


def _ports(live: LiveAddresses) -> dict[str, int]:
    """Returns the ports of the servers that a running `headrace up` runs itself."""
    addresses = {
        REGISTRY: live.registry,
        BROKER: f"//{live.broker}",
        METASTORE: live.metastore,
        SQL: f"//{live.sql}",
        CONSOLE: live.console,
        GATEWAY: live.gateway,
    }
    ports = {name: urlsplit(address).port for name, address in addresses.items() if name in live.pids}
    return {name: port for name, port in ports.items() if port is not None}


def _part_fact(name: str, result: ProbeResult, up: _Up) -> StatusFact:
    since = up.ready_since_ms(name)
    pid = up.live.pids.get(name) if up.live is not None else None
    notes: Mapping[str, str | None] = {
        "process": None if pid is None else str(pid),
        "since": None if since is None or result.health != Health.UP else time_text(since),
    }
    noted = "".join(f", {word} {value}" for word, value in notes.items() if value)
    text = f"{result.health} at {mask_passwords(result.address)}{noted}"
    return StatusFact(name, text, (_metric(name, result.health in (Health.UP, Health.DEGRADED)),))


def _metric(part: str, is_up: bool) -> StatusMetric:
    return StatusMetric("headrace_up_part", int(is_up), (("part", part.removeprefix("headrace ")),))
