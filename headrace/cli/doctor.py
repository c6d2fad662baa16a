"""`headrace doctor`: what Headrace needs of a machine and of those around it, each need looked at.

Reads only; a file that is made to see whether one can be is removed again.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.metadata
import os
import platform
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from headrace.cli.colour import print_report_line
from headrace.cli.command import (
    EXIT_FINDINGS,
    EXIT_OK,
    FLAGS,
    add_format_flag,
    add_settings_flags,
    examples,
    print_json,
    settings_from,
)
from headrace.cli.requirements import Requirement, missing_by_extra, satisfies
from headrace.hive_ddl.errors import HiveDdlError
from headrace.kafka_wire.errors import KafkaError
from headrace.loader.errors import LoaderError
from headrace.pipeline.java import JavaNotFoundError, ensure_java, java_version
from headrace.pipeline.load import commit_log, kafka_cluster, reject_second_warehouse
from headrace.registry.client.of_settings import registry_client
from headrace.registry.errors import DatabaseOutdated, DatabaseUnusable, RegistryError
from headrace.registry.storage.database import Database, sqlite_url
from headrace.settings import Address, Settings
from headrace.settings.addresses import (
    LiveAddresses,
    RemoteDirectory,
    live_addresses,
    resolve_metastore,
    warehouse_location,
)
from headrace.version import VERSION

FREE_BYTES_MIN = 1024 * 1024 * 1024
CONNECT_TIMEOUT_S = 5.0
SPARKS = ">=3.5,<5"  # of clusters, whose pyspark may stand in for ours (docs/cluster.md, "Another Spark")
ALL = "all"  # the extra
HARD_LINKS = "hard links, for commits"
LOADS = "loads go on"
REGISTRY_DATABASE = "registry's database"
INSTALL_AGAIN = "install Headrace again, from where it came and with its extras (docs/install.md)"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One need. `cure` is what to do, "" where it is met."""

    need: str
    found: str
    cure: str = ""

    @property
    def is_well(self) -> bool:
        return not self.cure


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Looks at versions, Java, directories, disk, file system, ports, registry, brokers, metastore and the "
        "warehouse, "
        "as the settings have them, and says what to do where something is not well. Changes nothing."
    )
    parser.epilog = examples("doctor", "doctor --config /etc/headrace/headrace.toml --format json") + (
        "\n\nexit codes:\n  0  all is well\n  1  something is to be done, and is named\n"
    )
    add_format_flag(parser)
    add_settings_flags(parser, tuple(key for key in FLAGS if key != "data_dir"))


def run(args: argparse.Namespace) -> int:
    found = []
    for each in _diagnoses(settings_from(args)):
        found.append(each)
        if args.format == "text":
            print_report_line(f"{'ok     ' if each.is_well else 'PROBLEM'} {each.need}: {each.found}", flush=True)
            if each.cure:
                print(f"        {each.cure}", flush=True)
    if args.format == "json":
        print_json([{**dataclasses.asdict(each), "is_well": each.is_well} for each in found])
    return EXIT_OK if all(each.is_well for each in found) else EXIT_FINDINGS


def _diagnoses(settings: Settings) -> Iterator[CheckResult]:
    """Each as soon as it is known; those that wait for somebody come last."""
    live = live_addresses(settings)
    yield _versions()
    yield _java(settings)
    yield _directory("data directory", settings.data_dir.resolve(), "data_dir")
    warehouse = warehouse_location(settings)
    if isinstance(warehouse, RemoteDirectory):
        yield CheckResult("warehouse", f"{warehouse}, reached through Spark's JVM; see `{LOADS}`")
    else:
        yield _directory("warehouse", warehouse, "loader.warehouse")
        yield _links(warehouse)
    yield _up(settings, live)
    if live is None:
        yield from _ports(settings)
    yield from _services(settings, live)
    yield _loads(settings, asks_brokers=live is not None or bool(settings.kafka.bootstrap_servers))


def _versions() -> CheckResult:
    """Of Python and of the libraries, by what this installation's own metadata asks for."""
    python = platform.python_version()
    try:
        installed = importlib.metadata.distribution("headrace")
    except importlib.metadata.PackageNotFoundError:
        return CheckResult("versions", f"Headrace {VERSION} as it lies there, not installed; Python {python}")
    required = [Requirement.parse(line) for line in installed.requires or ()]
    versions = {"Python": python, **_installed({each.name for each in required})}
    lacking = missing_by_extra(required, versions)
    extras = [extra for extra, missing in lacking.items() if not missing]
    without = ", ".join(lacking.get(ALL, ()))
    found = (
        f"Headrace {VERSION} with {ALL if ALL in extras else ', '.join(extras) or 'no extra'}"
        f"{f' (without {without})' if without else ''}, Python {python}, PySpark {versions.get('pyspark', 'not there')}"
    )
    asked = {each.name: each.bounds for each in required if each.extra in extras}
    asked["Python"] = installed.metadata["Requires-Python"] or ""
    if "pyspark" in asked:
        asked["pyspark"] = SPARKS
    amiss = [
        f"{name} {versions[name]} is not {bounds}"
        for name, bounds in sorted(asked.items())
        if not satisfies(versions[name], bounds)
    ]
    return CheckResult("versions", "; ".join((found, *amiss)), INSTALL_AGAIN if amiss else "")


def _installed(names: Iterable[str]) -> dict[str, str]:
    """The versions of those that are there."""
    found = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _java(settings: Settings) -> CheckResult:
    try:
        home = ensure_java(settings.data_dir, dict(os.environ))
    except JavaNotFoundError as error:
        found, _, cure = str(error).partition(". ")
        return CheckResult("Java", found, cure)
    return CheckResult("Java", f"Java {java_version(home / 'bin' / 'java')} in {home}")


def _directory(need: str, directory: Path, key: str) -> CheckResult:
    """Of a directory that may not be there yet: what is, is what it will be made in."""
    there = next(path for path in (directory, *directory.parents) if path.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        return CheckResult(need, f"{there} cannot be written to", f"make it writable, or set {key}")
    free = shutil.disk_usage(there).free
    found = f"{directory}{'' if there == directory else ' (not made yet)'}, {free / 1024**3:,.1f} GiB free"
    return CheckResult(need, found, "" if free >= FREE_BYTES_MIN else "make room there: loads stop when it is full")


def _links(warehouse: Path) -> CheckResult:
    there = next(path for path in (warehouse, *warehouse.parents) if path.exists())
    need = HARD_LINKS
    try:
        with tempfile.TemporaryDirectory(dir=there, prefix=".headrace-doctor-") as directory:
            first = Path(directory) / "a"
            first.touch()
            os.link(first, Path(directory) / "b")
    except OSError as error:
        cure = "put loader.warehouse on a file system with hard links (ext4, xfs, btrfs, zfs, apfs, nfs)"
        return CheckResult(need, f"none below {there}: {error.strerror}", cure)
    return CheckResult(need, "there")


def _up(settings: Settings, live: LiveAddresses | None) -> CheckResult:
    if live is None:
        return CheckResult("headrace up", f"does not run on {settings.data_dir}")
    return CheckResult("headrace up", f"runs as process {live.pid} since {live.started_at}")


def _ports(settings: Settings) -> Iterator[CheckResult]:
    """Where `up` would listen."""
    for name, listen, elsewhere in (
        ("registry", settings.registry.listen, settings.registry.url),
        ("broker", settings.broker.listen, settings.kafka.bootstrap_servers),
        ("hive", settings.hive.listen, settings.hive.metastore),
    ):
        if not elsewhere:
            yield _port(f"{name}.listen", listen)
    if settings.sql.listen is not None:
        yield _port("sql.listen", settings.sql.listen)


def _port(key: str, listen: Address) -> CheckResult:
    try:
        with socket.socket(socket.AF_INET6 if ":" in listen.host else socket.AF_INET) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((listen.host, listen.port))
    except OSError as error:
        return CheckResult(key, f"{listen}: {error.strerror}", f"stop what listens there, or set {key} before `up`")
    return CheckResult(key, f"{listen} is free")


def _services(settings: Settings, live: LiveAddresses | None) -> Iterator[CheckResult]:
    """Those that run, or that the settings name; where neither is so, `up` will bring them."""
    if live is not None or settings.registry.url:
        yield _told("registry", "registry.url", lambda: _registry(settings))
    elif settings.registry.database_url or (settings.data_dir / "registry.db").exists():
        yield _database(settings)
    if live is not None or settings.kafka.bootstrap_servers:
        yield _told("brokers", "kafka.bootstrap_servers", lambda: _brokers(settings))
    if resolve_metastore(settings) is not None:
        yield _told("metastore", "hive.metastore", lambda: _metastore(str(resolve_metastore(settings))))


def _told(need: str, key: str, look: Callable[[], str]) -> CheckResult:
    try:
        return CheckResult(need, look())
    except (RegistryError, KafkaError, LoaderError, OSError) as error:
        return CheckResult(need, str(error), f"start it, or mend {key}")


def _registry(settings: Settings) -> str:
    with registry_client(settings) as client:
        subjects = client.subjects()
        return f"{client.url} answers, with {len(subjects):,} subjects"


def _database(settings: Settings) -> CheckResult:
    need = REGISTRY_DATABASE
    try:
        database = Database(settings.registry.database_url or sqlite_url(settings.data_dir / "registry.db"))
    except RegistryError as error:
        return CheckResult(need, str(error), "mend registry.database_url")
    try:
        database.check()
    except DatabaseUnusable as error:
        if isinstance(error, DatabaseOutdated) and database.is_sqlite:
            return CheckResult(need, f"{error.problem}, to which the next start of `up` or `registry serve` brings it")
        return CheckResult(need, error.problem, error.remedy or "start it, or mend registry.database_url")
    except RegistryError as error:
        return CheckResult(need, str(error), "start it, or mend registry.database_url")
    finally:
        database.close()
    return CheckResult(need, f"{database.name} is up to date")


def _brokers(settings: Settings) -> str:
    with kafka_cluster(settings) as cluster:
        metadata = cluster.metadata()
        return f"{len(metadata.brokers):,} answer, with {len(metadata.topics):,} topics"


def _metastore(uri: str) -> str:
    for each in uri.split(","):
        parts = urlsplit(each.strip())
        with (
            contextlib.suppress(OSError),
            socket.create_connection((parts.hostname or "", parts.port or 0), CONNECT_TIMEOUT_S),
        ):
            return f"{each.strip()} accepts connections"
    raise OSError(f"nobody accepts connections at {uri}")


def _loads(settings: Settings, *, asks_brokers: bool) -> CheckResult:
    need = LOADS
    try:
        log = commit_log(settings, looks_only=True)
        log.check_format(writing=False)
        commit_number = log.read_state().commit_number
        if not commit_number and asks_brokers:
            reject_second_warehouse(settings, log)
    except LoaderError as error:
        found, _, cure = str(error).partition("; ")
        return CheckResult(need, found, cure or "mend it before the next load")
    except (OSError, HiveDdlError) as error:  # of a warehouse on HDFS or S3
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        return CheckResult(need, reason, "see whether it runs and answers this machine, or mend loader.warehouse")
    except KafkaError:  # which is told above
        return CheckResult(need, "nothing was loaded yet")
    return CheckResult(need, f"after commit {commit_number:,}" if commit_number else "nothing was loaded yet")
