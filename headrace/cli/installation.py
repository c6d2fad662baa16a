"""The checks of `headrace doctor`: this machine and the configured services.

The checks change no data: a file created to test a file system is removed again. They may create caches, such as the
wrapper of a bundled Java, and Spark's log.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.metadata
import os
import platform
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.cli.requirements import Requirement, missing_by_extra, satisfies
from headrace.hive_ddl.errors import HiveDdlError
from headrace.kafka_wire.errors import KafkaError
from headrace.loader.errors import LoaderError
from headrace.pipeline.java import JavaNotFoundError, ensure_java, java_version
from headrace.pipeline.load import commit_log, kafka_cluster, reject_second_warehouse
from headrace.pipeline.status.collect import platform_status
from headrace.pipeline.status.probe import (
    TIMEOUT_S,
    Health,
    ProbeResult,
    probe_brokers,
    probe_metastore,
    probe_registry,
)
from headrace.registry.client.of_settings import registry_client
from headrace.registry.errors import DatabaseOutdated, DatabaseUnusable, RegistryError
from headrace.registry.storage.database import Database, sqlite_url
from headrace.settings import Address, Settings, SettingsError
from headrace.settings.addresses import (
    RemoteDirectory,
    live_addresses,
    warehouse_location,
)
from headrace.version import VERSION

SPARK_VERSIONS = ">=3.5,<5"  # pyspark of a cluster, used in place of ours (docs/cluster.md, "Another Spark")
ALL_EXTRAS = "all"  # extra that installs the libraries of all subcommands
HARD_LINKS = "hard links of the warehouse"
LOADS = "commit log"
REGISTRY_DATABASE = "registry's database"
SERVED = {"registry.listen": "schema registry", "broker.listen": "Kafka broker", "hive.listen": "Hive metastore"}
WAREHOUSE_SERVICE = "check that the service runs and is reachable from this machine, or correct loader.warehouse"
WAREHOUSE_PERMISSION = "permit this user to read and write loader.warehouse, or renew its credentials"
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


def installation_checks(settings: Settings) -> Iterator[CheckResult]:
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
    if live is None:
        yield from _ports(settings)
        if not settings.registry.url and (
            settings.registry.database_url or (settings.data_dir / "registry.db").exists()
        ):
            yield _database(settings)
    loads = _loads(settings, with_brokers=live is not None or bool(settings.kafka.bootstrap_servers))
    yield loads
    yield from _status(settings, loads)


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
    """Checks that a directory can be written to. If it does not exist yet, checks its nearest existing parent.

    Args:
        name: name of the check in the report.
        key: the setting that selects the directory, for the remedy.
    """
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        return CheckResult(
            name, f"{existing} cannot be written to", f"make it writable, or set {key} to another directory"
        )
    return CheckResult(name, f"{directory}{'' if existing == directory else ' (does not exist yet)'}")


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


def _ports(settings: Settings) -> Iterator[CheckResult]:
    """Checks that the addresses on which `headrace up` would listen are free, or that a server of the same kind listens
    there, such as `headrace registry serve`. Skips a service if the settings name an existing server for it."""

    def registry() -> ProbeResult:
        with registry_client(settings, TIMEOUT_S) as client:
            return probe_registry(client)

    def broker() -> ProbeResult:
        with kafka_cluster(settings, TIMEOUT_S) as cluster:
            return probe_brokers(cluster, str(settings.broker.listen))

    for name, listen, existing_server, probe in (
        ("registry", settings.registry.listen, settings.registry.url, registry),
        ("broker", settings.broker.listen, settings.kafka.bootstrap_servers, broker),
        (
            "hive",
            settings.hive.listen,
            settings.hive.metastore,
            lambda: probe_metastore(f"thrift://{settings.hive.listen}"),
        ),
    ):
        if not existing_server:
            yield _port(f"{name}.listen", listen, probe)
    if settings.sql.listen is not None:
        yield _port("sql.listen", settings.sql.listen)


def _port(key: str, listen: Address, probe: Callable[[], ProbeResult] | None = None) -> CheckResult:
    """Checks one address.

    Args:
        probe: sends a request to a server at the address; None if none is known.
    """
    try:
        with socket.socket(socket.AF_INET6 if ":" in listen.host else socket.AF_INET) as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind((listen.host, listen.port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE and probe is not None and _answers(probe):
            return CheckResult(key, f"{listen}: a {SERVED[key]} answers, which `headrace up` would start")
        return CheckResult(key, f"{listen}: {error.strerror}", f"stop the process that uses the port, or set {key}")
    return CheckResult(key, f"{listen} is free")


def _answers(probe: Callable[[], ProbeResult]) -> bool:
    try:
        return probe().health in (Health.UP, Health.DEGRADED)
    except (RegistryError, KafkaError, SettingsError, OSError):
        return False


def _status(settings: Settings, loads: CheckResult) -> Iterator[CheckResult]:
    """Yields the findings of `headrace status`. Omits findings that the check of the commit log has reported."""
    status = platform_status(settings, expects_servers=False)
    known = () if loads.is_ok else ("commit log", "lag")
    findings = [found for found in status.findings if found.subject not in known]
    for found in findings:
        yield CheckResult(
            f"status of {found.subjects_text}", f"{found.title}: {found.problem}{found.example}", found.repair
        )
    if not findings:
        yield CheckResult("status", "no finding; see headrace status")


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
        finding, _, remedy = reason.partition("; ")
        is_refused = isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM)
        return CheckResult(name, finding, remedy or (WAREHOUSE_PERMISSION if is_refused else WAREHOUSE_SERVICE))
    except KafkaError:  # the check of the brokers reports it
        return CheckResult(name, "no load yet")
    return CheckResult(name, f"at commit {commit_number:,}" if commit_number else "no load yet")
