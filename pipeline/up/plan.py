"""What `headrace up` starts and when: commits alone.

A part whose death ends the whole holds what was acknowledged, and half a pipeline that looks alive is worse than one
that is down. The others hold nothing: they are started again, and whoever needed them tries again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.settings import CONFIG_PATH_VARIABLE, ENVIRONMENT_PREFIX, Settings
from headrace.settings.addresses import local_warehouse_directory, sql_socket

LOAD = "load"
PARTS: Mapping[str, str] = {
    "registry": "registry.url",
    "broker": "kafka.bootstrap_servers",
    "metastore": "hive.metastore",
    "sql": "",
    LOAD: "",
}
"""In the order of their start, each with the setting that says that it is elsewhere."""

QUICK_DEATH_S = 5.0  # a part that served for less has not recovered by being started again
RESTART_DELAY_MAX_S = 60.0
# A third of the weight of those for whom somebody waits. Beside a load that starts its Spark, SQL that is started
# again is back in half the time; further back, loads would fall behind producers who never rest.
LOAD_NICENESS = 5


@dataclass(frozen=True, slots=True)
class PartCommand:
    """How one part is started: a module and its arguments; `name` also names its log file.

    Attributes:
        restarts: whether it is started again when it ends; else the whole ends with it.
        is_server: whether it says that it is ready, in a line.
        reads_requests: whether it does something when a line on its standard input asks for it, and answers with a line.
        niceness: as of nice(1), 0 or more: how far it steps back where others want the same cores.
    """

    name: str
    arguments: tuple[str, ...]
    restarts: bool = False
    is_server: bool = True
    reads_requests: bool = False
    niceness: int = 0


def parts_of(settings: Settings, only: Collection[str] = ()) -> tuple[str, ...]:
    """The names of the parts to run: those of `only`, else all that the settings do not place elsewhere."""
    if only:
        return tuple(name for name in PARTS if name in only)
    return tuple(name for name, key in PARTS.items() if not key or not _setting(settings, key))


def part_command(name: str, settings: Settings, addresses: Mapping[str, str]) -> PartCommand:
    """
    Args:
        addresses: those of the parts that are ready, by the names of their ready lines: one that is started again
            listens where it did.
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
    if name == LOAD:
        return PartCommand(
            name, ("headrace", "load", "serve", "--data-dir", data_dir), reads_requests=True, niceness=LOAD_NICENESS
        )
    return PartCommand(name, ("headrace", name, "serve", "--data-dir", data_dir))


def child_environment(
    environment: Mapping[str, str], flags: Mapping[str, str], config: Path | None = None
) -> dict[str, str]:
    """The environment in which a child reads the same settings: flags travel as variables, which beat the file."""
    variables = {ENVIRONMENT_PREFIX + "__".join(key.upper().split(".", 1)): value for key, value in flags.items()}
    if config is not None:
        variables[CONFIG_PATH_VARIABLE] = str(config.resolve())
    return {**environment, **variables}


def consecutive_deaths(before: int, ready_for_s: float) -> int:
    """How many times in a row a part has died before it had served for `QUICK_DEATH_S`; the first time counts too."""
    return before + 1 if ready_for_s < QUICK_DEATH_S else 1


def restart_delay_s(quick_deaths: int) -> float:
    """How long to wait before a part is started again that died so many times in a row before it had served
    for `QUICK_DEATH_S`: not at all, then 1, 2, 4 … seconds."""
    return min(RESTART_DELAY_MAX_S, 2.0 ** (quick_deaths - 2)) if quick_deaths > 1 else 0.0


def next_aligned_ms(now_ms: int, interval_ms: int) -> int:
    """The next instant after `now_ms` that is a whole number of intervals since 1970, so that runs of different
    machines and restarts fall on the same minutes."""
    return (now_ms // interval_ms + 1) * interval_ms


def _setting(settings: Settings, key: str) -> str:
    section, _, name = key.partition(".")
    return str(getattr(getattr(settings, section), name))
