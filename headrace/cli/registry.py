"""`headrace registry`: serves the schema registry. Adds the verbs for its subjects, database, users, transfer and
replication."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

from headrace.cli import (
    registry_access,
    registry_database,
    registry_replication,
    registry_subjects,
    registry_transfer,
)
from headrace.cli.command import CommandError, add_settings_flags, examples, settings_from
from headrace.settings import RegistrySettings, Settings
from headrace.version import VERSION, commit_id

if TYPE_CHECKING:
    from flask import Flask

    from headrace.registry.access.authenticator import RegistryUsersFile
    from headrace.registry.api.asgi_front import AsgiFront
    from headrace.registry.api.cross_origin import CrossOriginPolicy
    from headrace.registry.operation.audit_log import AuditLog
    from headrace.registry.operation.shared_counts import SharedCounts
    from headrace.registry.storage.database import Database


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    serve = verbs.add_parser(
        "serve",
        help="serve the REST API",
        description="Serves the Confluent Schema Registry REST API for Avro. Without registry.users every client may "
        "change schemas. The registry then listens on loopback only, unless "
        "registry.allow_unauthenticated_from is network.",
        epilog=examples("registry serve", "registry serve --config /etc/headrace/headrace.toml --workers 2"),
    )
    add_settings_flags(serve, ("registry.listen", "registry.database_url", "registry.workers", "registry.users"))
    serve.set_defaults(run_verb=serve_registry)
    registry_subjects.add_verbs(verbs)
    registry_database.add_verbs(verbs)
    registry_transfer.add_verbs(verbs)
    registry_replication.add_verbs(verbs)
    registry_access.add_verbs(verbs)


def run(args: argparse.Namespace) -> int:
    """Runs the verb of `headrace registry` that the command line names, such as `serve`, and returns its exit code."""
    return int(args.run_verb(args))


def serve_registry(args: argparse.Namespace) -> int:
    settings = settings_from(args)
    registry_access.check_access(settings.registry)
    registry_access.check_audit_log(settings)
    # Only the workers need it, but this import reports a missing library before they start.
    import headrace.registry.api.app  # noqa: F401
    from headrace.registry.api.listening import ReservedPort
    from headrace.registry.api.server import serve
    from headrace.registry.errors import RegistryError
    from headrace.registry.operation.audit_log import new_lost_counts
    from headrace.registry.operation.metrics import SPARE_SLOTS, new_counts
    from headrace.registry.storage.database import Database

    url = registry_database.database_url(settings)
    address = settings.registry.listen
    tls = registry_access.tls_of(settings.registry)
    mtls = registry_access.mtls_listener(settings.registry, tls)
    _cross_origin(settings.registry)
    if settings.registry.workers < 1:
        raise CommandError(f"registry.workers is {settings.registry.workers}, expected at least 1 process")
    try:
        reserved = ReservedPort(address.host, address.port)
        # Reserves the port for as long as this process serves.
        mtls_port = None if mtls is None else ReservedPort(mtls.host, mtls.port)
    except OSError as error:
        raise CommandError(
            f"registry cannot listen on {address}: {error.strerror or error}; stop the process that uses the port, or "
            "choose another address with --registry-listen"
        ) from error
    try:
        database = Database(url)
        # A SQLite file belongs to this process. A shared database is migrated by its operator only.
        (database.upgrade if database.is_sqlite else database.check)()
        database.close()
    except RegistryError as error:
        raise CommandError(str(error)) from error
    workers = settings.registry.workers
    counts, lost = new_counts(workers), new_lost_counts(workers + SPARE_SLOTS)
    try:
        return serve(reserved, lambda: _front(settings, url, counts, lost), workers=workers, tls=tls, mtls=mtls)
    finally:
        if mtls_port is not None:
            mtls_port.close()


def _cross_origin(settings: RegistrySettings) -> CrossOriginPolicy | None:
    from headrace.registry.api.cross_origin import CrossOriginPolicy

    try:
        return CrossOriginPolicy.of(settings.access_control_allow_origin)
    except ValueError as error:
        raise CommandError(f"registry.access_control_allow_origin: {error}") from error


def _front(settings: Settings, url: str, counts: SharedCounts, lost: SharedCounts) -> AsgiFront:
    """Builds the ASGI application of a worker process, which handles HTTP and passes requests to the Flask application.

    Args:
        url: URL of the registry's database.
        counts: counters of requests in memory that all workers share, for /metrics.
        lost: counter of lines that are missing in the audit log, in memory that all workers share.
    """
    from headrace.registry.api.asgi_front import AsgiFront
    from headrace.registry.api.client_queues import RUNNING_MAX
    from headrace.registry.api.compute_pool import ComputePool
    from headrace.registry.api.request_rates import RequestRates
    from headrace.registry.operation.audit_log import AuditLog
    from headrace.registry.operation.metrics import make_request_recorder
    from headrace.registry.storage.database import Database
    from headrace.registry.storage.revision_check import open_revision_reader

    database = Database(url, connections=settings.registry.database_connections)
    users = registry_access.users_of(settings.registry)
    rate = settings.registry.requests_per_second_max
    target = registry_access.audit_log_target(settings)
    audit_log = AuditLog(target, lost) if target else None
    return AsgiFront(
        _application(settings.registry, database, users, counts, audit_log),
        open_revision_reader(url),
        request_bytes_max=settings.registry.request_bytes_max,
        authenticator=users,
        observer=make_request_recorder(counts, settings.registry.access_log),
        rates=RequestRates(rate) if rate else None,
        compute_pool=ComputePool(partial(_checking, settings.registry, url), RUNNING_MAX),
        cross_origin=_cross_origin(settings.registry),
        on_end=database.close,
    )


def _checking(settings: RegistrySettings, url: str) -> Flask:
    """Builds a second Flask application, for a child process that runs compatibility checks, so that they do not delay
    other requests of the worker.

    Args:
        url: URL of the registry's database.
    """
    from headrace.registry.storage.database import Database

    database = Database(url, connections=1)
    return _application(settings, database, registry_access.users_of(settings))


def _application(
    settings: RegistrySettings,
    database: Database,
    users: RegistryUsersFile | None,
    counts: SharedCounts | None = None,
    audit_log: AuditLog | None = None,
) -> Flask:
    from headrace.registry.api.app import create_app

    return create_app(
        database,
        default_level=settings.compatibility,
        request_bytes_max=settings.request_bytes_max,
        version=VERSION,
        commit=commit_id(),
        profile=settings.api_profile,
        stores_rules=settings.rule_sets == "keep",
        mutable_modes=settings.mode_changes == "allow",
        users=users,
        counts=counts,
        audit_log=audit_log,
    )
