"""`headrace doctor`: checks this machine and the configured services.

The checks change no data: a file created to test a file system is removed again. They may create caches, such as the
wrapper of a bundled Java, and Spark's log.
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
SPARK_VERSIONS = ">=3.5,<5"  # pyspark of a cluster, used in place of ours (docs/cluster.md, "Another Spark")
ALL_EXTRAS = "all"  # extra that installs the libraries of all subcommands
HARD_LINKS = "hard links of the warehouse"
LOADS = "commit log"
REGISTRY_DATABASE = "registry's database"
REINSTALL = "reinstall Headrace with its extras (docs/install.md)"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check: its name, what it found, and the remedy of a problem ("" for a passed check)."""

    name: str
    finding: str
    remedy: str = ""

    @property
    def is_ok(self) -> bool:
        return not self.remedy


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Checks versions, Java, directories, disk space, file system, ports, registry, brokers, metastore and the "
        "warehouse of the settings, and names a remedy for each problem. Changes nothing."
    )
    parser.epilog = examples("doctor", "doctor --config /etc/headrace/headrace.toml --format json") + (
        "\n\nexit codes:\n  0  all checks passed\n  1  problems, each with a remedy\n"
    )
    add_format_flag(parser)
    add_settings_flags(parser, tuple(key for key in FLAGS if key != "data_dir"))


def run(args: argparse.Namespace) -> int:
    results = []
    for result in _run_checks(settings_from(args)):
        results.append(result)
        if args.format == "text":
            print_report_line(f"{'ok     ' if result.is_ok else 'PROBLEM'} {result.name}: {result.finding}", flush=True)
            if result.remedy:
                print(f"        {result.remedy}", flush=True)
    if args.format == "json":
        print_json([{**dataclasses.asdict(result), "is_ok": result.is_ok} for result in results])
    return EXIT_OK if all(result.is_ok for result in results) else EXIT_FINDINGS


def _run_checks(settings: Settings) -> Iterator[CheckResult]:
    """Runs all checks, and yields each result as soon as it is known. Checks of services come last, since they wait for
    responses."""
    live = live_addresses(settings)
    yield _versions()
    yield _java(settings)
    yield _directory("data directory", settings.data_dir.resolve(), "data_dir")
    warehouse = warehouse_location(settings)
    if isinstance(warehouse, RemoteDirectory):
        yield CheckResult("warehouse", f"{warehouse}, accessed through Spark's JVM; see the check `{LOADS}`")
    else:
        yield _directory("warehouse", warehouse, "loader.warehouse")
        yield _hard_links(warehouse)
    yield _up(settings, live)
    if live is None:
        yield from _ports(settings)
    yield from _services(settings, live)
    yield _loads(settings, with_brokers=live is not None or bool(settings.kafka.bootstrap_servers))


def _versions() -> CheckResult:
    """Checks the installed versions of Python and the libraries against the bounds that this distribution requires;
    PySpark against `SPARK_VERSIONS`. Libraries of extras that are not completely installed are not checked. Without an
    installed distribution, only reports the versions."""
    python = platform.python_version()
    try:
        installed = importlib.metadata.distribution("headrace")
    except importlib.metadata.PackageNotFoundError:
        return CheckResult("versions", f"Headrace {VERSION}, not installed as a distribution; Python {python}")
    required = [Requirement.parse(line) for line in installed.requires or ()]
    versions = {"Python": python, **_installed({requirement.name for requirement in required})}
    missing = missing_by_extra(required, versions)
    complete = [extra for extra, libraries in missing.items() if not libraries]
    extras = ALL_EXTRAS if ALL_EXTRAS in complete else ", ".join(complete) or "no extra"
    missing_text = ", ".join(missing.get(ALL_EXTRAS, ()))
    finding = (
        f"Headrace {VERSION} with {extras}{f' (without {missing_text})' if missing_text else ''}, Python {python}, "
        f"PySpark {versions.get('pyspark', 'not installed')}"
    )
    bounds_by_name = {requirement.name: requirement.bounds for requirement in required if requirement.extra in complete}
    bounds_by_name["Python"] = installed.metadata["Requires-Python"] or ""
    if "pyspark" in bounds_by_name:
        bounds_by_name["pyspark"] = SPARK_VERSIONS
    unsupported_versions = [
        f"{name} {versions[name]} is not {bounds}"
        for name, bounds in sorted(bounds_by_name.items())
        if not satisfies(versions[name], bounds)
    ]
    return CheckResult(
        "versions", "; ".join((finding, *unsupported_versions)), REINSTALL if unsupported_versions else ""
    )


def _installed(names: Iterable[str]) -> dict[str, str]:
    """Returns the versions of the named libraries, without libraries that are not installed."""
    versions = {}
    for library in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[library] = importlib.metadata.version(library)
    return versions


def _java(settings: Settings) -> CheckResult:
    try:
        home = ensure_java(settings.data_dir, dict(os.environ))
    except JavaNotFoundError as error:
        finding, _, remedy = str(error).partition(". ")
        return CheckResult("Java", finding, remedy)
    return CheckResult("Java", f"Java {java_version(home / 'bin' / 'java')} in {home}")


def _directory(name: str, directory: Path, key: str) -> CheckResult:
    """Checks that a directory can be written to and has free space. If it does not exist yet, checks its nearest
    existing parent.

    Args:
        name: name of the check in the report.
        key: the setting that selects the directory, for the remedy.
    """
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        return CheckResult(
            name, f"{existing} cannot be written to", f"make it writable, or set {key} to another directory"
        )
    free = shutil.disk_usage(existing).free
    finding = f"{directory}{'' if existing == directory else ' (does not exist yet)'}, {free / 1024**3:,.1f} GiB free"
    return CheckResult(
        name, finding, "" if free >= FREE_BYTES_MIN else "free disk space: loads fail when the disk is full"
    )


def _hard_links(warehouse: Path) -> CheckResult:
    existing = next(path for path in (warehouse, *warehouse.parents) if path.exists())
    name = HARD_LINKS
    try:
        with tempfile.TemporaryDirectory(dir=existing, prefix=".headrace-doctor-") as directory:
            first = Path(directory) / "a"
            first.touch()
            os.link(first, Path(directory) / "b")
    except OSError as error:
        remedy = "move loader.warehouse to a file system with hard links (ext4, xfs, btrfs, zfs, apfs, nfs)"
        return CheckResult(name, f"not supported in {existing}: {error.strerror}", remedy)
    return CheckResult(name, "supported")


def _up(settings: Settings, live: LiveAddresses | None) -> CheckResult:
    if live is None:
        return CheckResult("headrace up", f"not running on {settings.data_dir}")
    return CheckResult("headrace up", f"running as process {live.pid} since {live.started_at}")


def _ports(settings: Settings) -> Iterator[CheckResult]:
    """Checks that the addresses on which `headrace up` would listen are free, and yields a result for each. Skips a
    service if the settings name an existing server for it."""
    for name, listen, existing_server in (
        ("registry", settings.registry.listen, settings.registry.url),
        ("broker", settings.broker.listen, settings.kafka.bootstrap_servers),
        ("hive", settings.hive.listen, settings.hive.metastore),
    ):
        if not existing_server:
            yield _port(f"{name}.listen", listen)
    if settings.sql.listen is not None:
        yield _port("sql.listen", settings.sql.listen)


def _port(key: str, listen: Address) -> CheckResult:
    try:
        with socket.socket(socket.AF_INET6 if ":" in listen.host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((listen.host, listen.port))
    except OSError as error:
        return CheckResult(key, f"{listen}: {error.strerror}", f"stop the process that uses the port, or set {key}")
    return CheckResult(key, f"{listen} is free")


def _services(settings: Settings, live: LiveAddresses | None) -> Iterator[CheckResult]:
    """Checks the services that the settings name or a running `headrace up` provides. If there is no registry, checks
    its database instead, if there is one. A service that `headrace up` would start is not checked.

    Args:
        live: the addresses of the running `headrace up`; None if none runs.
    """
    if live is not None or settings.registry.url:
        yield _check_service("registry", "registry.url", lambda: _registry(settings))
    elif settings.registry.database_url or (settings.data_dir / "registry.db").exists():
        yield _database(settings)
    if live is not None or settings.kafka.bootstrap_servers:
        yield _check_service("brokers", "kafka.bootstrap_servers", lambda: _brokers(settings))
    if resolve_metastore(settings) is not None:
        yield _check_service("metastore", "hive.metastore", lambda: _metastore(str(resolve_metastore(settings))))


def _check_service(name: str, key: str, check: Callable[[], str]) -> CheckResult:
    try:
        return CheckResult(name, check())
    except (RegistryError, KafkaError, LoaderError, OSError) as error:
        return CheckResult(name, str(error), f"start the service, or correct {key}")


def _registry(settings: Settings) -> str:
    with registry_client(settings) as client:
        subjects = client.subjects()
        return f"{client.url} is available, with {len(subjects):,} subjects"


def _database(settings: Settings) -> CheckResult:
    name = REGISTRY_DATABASE
    try:
        database = Database(settings.registry.database_url or sqlite_url(settings.data_dir / "registry.db"))
    except RegistryError as error:
        return CheckResult(name, str(error), "correct registry.database_url")
    try:
        database.check()
    except DatabaseUnusable as error:
        if isinstance(error, DatabaseOutdated) and database.is_sqlite:
            return CheckResult(name, f"{error.problem}; the next start of `up` or `registry serve` migrates it")
        return CheckResult(
            name, error.problem, error.remedy or "start the database server, or correct registry.database_url"
        )
    except RegistryError as error:
        return CheckResult(name, str(error), "start the database server, or correct registry.database_url")
    finally:
        database.close()
    return CheckResult(name, f"{database.name} is up to date")


def _brokers(settings: Settings) -> str:
    with kafka_cluster(settings) as cluster:
        metadata = cluster.metadata()
        return f"{len(metadata.brokers):,} available, with {len(metadata.topics):,} topics"


def _metastore(uri: str) -> str:
    for result in uri.split(","):
        with contextlib.suppress(OSError, ValueError):  # ValueError: the host or port is malformed
            parts = urlsplit(result.strip())
            socket.create_connection((parts.hostname or "", parts.port or 0), CONNECT_TIMEOUT_S).close()
            return f"{result.strip()} accepts connections"
    raise OSError(f"no metastore accepts connections at {uri}")


def _loads(settings: Settings, *, with_brokers: bool) -> CheckResult:
    name = LOADS
    try:
        log = commit_log(settings, read_only=True)
        log.check_format(writing=False)
        commit_number = log.read_state().commit_number
        if not commit_number and with_brokers:
            reject_second_warehouse(settings, log)
    except LoaderError as error:
        finding, _, remedy = str(error).partition("; ")
        return CheckResult(name, finding, remedy or "repair the warehouse before the next load")
    except (OSError, HiveDdlError) as error:  # the warehouse may be on HDFS or S3
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        return CheckResult(
            name, reason, "check that the service runs and is reachable from this machine, or correct loader.warehouse"
        )
    except KafkaError:  # the check of the brokers reports it
        return CheckResult(name, "no load yet")
    return CheckResult(name, f"at commit {commit_number:,}" if commit_number else "no load yet")
