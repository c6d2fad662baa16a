"""Decides what `headrace up` starts and when. Pure functions only.

Registry and broker hold acknowledged data. If one of them dies, `headrace up` ends: half a pipeline that appears to
work is worse than one that is down. The other parts are restarted, and their clients retry.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.settings import CONFIG_PATH_VARIABLE, ENVIRONMENT_PREFIX, Settings
from headrace.settings.addresses import local_warehouse_directory, sql_socket

LOAD, AUDIT, CONSOLE, GATEWAY, ALERTS = "load", "audit", "console", "gateway", "alerts"
PARTS: Mapping[str, str] = {
    "registry": "registry.url",
    "broker": "kafka.bootstrap_servers",
    "metastore": "hive.metastore",
    "sql": "",
    AUDIT: "",
    CONSOLE: "",
    GATEWAY: "",
    ALERTS: "",
    LOAD: "",
}
"""The parts in the order of their start. The value is the setting that names a server elsewhere, which is used in place
of the part; "" if there is no such setting. The part `alerts` runs only if the settings name a target of alerts."""

QUICK_DEATH_S = 5.0  # a part that served for less time has not recovered through its restart
RESTART_DELAY_MAX_S = 60.0
# With this niceness, loads get a third of the CPU weight of parts with waiting clients. While a load starts Spark, a
# restarted SQL server is then ready in half the time. With a higher niceness, loads would fall behind busy producers.
LOAD_NICENESS = 5


@dataclass(frozen=True, slots=True)
class PartCommand:
    """The command of a part: a module and its arguments. `name` is also the name of its log file.

    Attributes:
        restarts: whether `supervisor` restarts the part when it ends; otherwise `headrace up` ends. Not used for the
            load process, which `schedule` restarts, and for the process that creates the class archive.
        is_server: whether the part prints a ready line.
        reads_requests: whether the part reads requests on standard input, one per line, and prints a line in response.
        niceness: as of nice(1), 0 or more.
    """

    name: str
    arguments: tuple[str, ...]
    restarts: bool = False
    is_server: bool = True
    reads_requests: bool = False
    niceness: int = 0


def parts_of(settings: Settings, only: Collection[str] = ()) -> tuple[str, ...]:
    """Returns the names of the parts to run: those in `only`. By default these are all parts except the ones that a
    setting replaces with the address of an existing server, and `alerts` without a target of alerts."""
    if only:
        return tuple(name for name in PARTS if name in only)
    names = (name for name, key in PARTS.items() if not key or not _setting(settings, key))
    return tuple(name for name in names if name != ALERTS or settings.alerts.has_targets)


def part_command(name: str, settings: Settings, addresses: Mapping[str, str]) -> PartCommand:
    """Returns the command that starts the part `name` of `headrace up`, such as the registry.

    Args:
        addresses: addresses of the parts that are ready, by the names in their ready lines. A restarted part listens on
            its previous address.
    """
    data_dir = str(settings.data_dir.resolve())
    if name == "metastore":
        listen = addresses.get("metastore", "").removeprefix("thrift://") or str(settings.hive.listen)
        serve = ["--data-dir", data_dir, "--listen", listen, "--warehouse", str(local_warehouse_directory(settings))]
        return PartCommand(name, ("headrace.pipeline.metastore_server", *serve), restarts=True)
    if name == "sql":
        serve = [
            "--data-dir",
            data_dir,
            "--socket",
            str(sql_socket(settings)),
            "--warehouse",
            str(local_warehouse_directory(settings)),
        ]
        serve += ["--metastore", settings.hive.metastore or addresses["metastore"]]
        if settings.sql.listen is not None:
            serve += ["--listen", addresses.get("sql") or str(settings.sql.listen)]
        return PartCommand(name, ("headrace.pipeline.sql_server", *serve), restarts=True)
    if name == AUDIT:
        run = ["headrace", "audit", "run", "--data-dir", data_dir, *_server_flags(settings, addresses)]
        return PartCommand(name, tuple(run), restarts=True, niceness=LOAD_NICENESS)
    if name == LOAD:
        return PartCommand(
            name, ("headrace", "load", "serve", "--data-dir", data_dir), reads_requests=True, niceness=LOAD_NICENESS
        )
    if name == CONSOLE:
        listen = addresses.get(CONSOLE, "").partition("://")[2] or str(settings.console.listen)
        serve = ["headrace", "console", "serve", "--data-dir", data_dir, "--console-listen", listen]
        return PartCommand(name, tuple(serve), restarts=True)
    if name == GATEWAY:
        listen = addresses.get(GATEWAY, "").partition("://")[2] or str(settings.gateway.listen)
        serve = ["headrace", "gateway", "serve", "--data-dir", data_dir, "--gateway-listen", listen]
        return PartCommand(name, (*serve, *_server_flags(settings, addresses)), restarts=True)
    if name == ALERTS:
        return PartCommand(name, ("headrace", "alerts", "run", "--data-dir", data_dir), restarts=True)
    return PartCommand(name, ("headrace", name, "serve", "--data-dir", data_dir))


def _server_flags(settings: Settings, addresses: Mapping[str, str]) -> list[str]:
    """Returns the flags with the addresses of registry and broker, unless settings name servers elsewhere."""
    flags = []
    if "registry" in addresses and not settings.registry.url:
        flags += ["--registry-url", addresses["registry"]]
    if "broker" in addresses and not settings.kafka.bootstrap_servers:
        flags += ["--bootstrap-servers", addresses["broker"]]
    return flags


def child_environment(
    environment: Mapping[str, str], flags: Mapping[str, str], config: Path | None = None
) -> dict[str, str]:
    """Returns the environment variables with which a child process reads the same settings as this one.

    Args:
        environment: the variables of this process.
        flags: settings of the command line, by dotted key. They become variables, which override the settings file.
        config: path of the settings file; None if the command line names none.
    """
    variables = {ENVIRONMENT_PREFIX + "__".join(key.upper().split(".", 1)): value for key, value in flags.items()}
    if config is not None:
        variables[CONFIG_PATH_VARIABLE] = str(config.resolve())
    return {**environment, **variables}


def consecutive_deaths(before: int, ready_for_s: float) -> int:
    """Returns how many times in succession a part has ended less than `QUICK_DEATH_S` after it was ready, counting the
    present end. If the present end came later than that, returns 1.

    Args:
        before: the count at the part's previous end.
        ready_for_s: time from the ready line to this end.
    """
    return before + 1 if ready_for_s < QUICK_DEATH_S else 1


def restart_delay_s(quick_deaths: int) -> float:
    """Returns the delay in seconds before a part is restarted: 0, 0, 1, 2, 4 … up to `RESTART_DELAY_MAX_S`.

    Args:
        quick_deaths: number of consecutive early ends of the part, as `consecutive_deaths` returns it, or 0.
    """
    return min(RESTART_DELAY_MAX_S, 2.0 ** (quick_deaths - 2)) if quick_deaths > 1 else 0.0


def next_aligned_ms(now_ms: int, interval_ms: int) -> int:
    """Returns the next multiple of `interval_ms` since 1970 after `now_ms`. Loads therefore start at the same minutes
    on all machines and after a restart."""
    return (now_ms // interval_ms + 1) * interval_ms


def _setting(settings: Settings, key: str) -> str:
    section, _, name = key.partition(".")
    return str(getattr(getattr(settings, section), name))
