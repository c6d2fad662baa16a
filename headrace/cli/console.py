"""`headrace console`: serves the web pages of the platform."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from headrace.cli import registry_access
from headrace.cli.command import CommandError, add_settings_flags, examples, flag_values, origins_from, settings_from
from headrace.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping
    from multiprocessing.queues import SimpleQueue

    from flask import Flask

    from headrace.settings import Settings


READ_AHEAD_S = 2.0
"""The longest wait for the state of the commit log at the start."""


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    serve = verbs.add_parser(
        "serve",
        help="serve the web pages",
        description="Serves web pages that show whether messages are missing, late or doubled, and what needs action. "
        "`headrace up` serves them too. Users are those of registry.users, with its permissions and `grant NAME "
        "payload TOPICS`, which shows the content of messages. Without registry.users the console listens on loopback "
        "only, unless console.allow_unauthenticated_from is network.",
        epilog=examples("console serve", "console serve --console-listen 127.0.0.1:8090"),
    )
    add_settings_flags(
        serve,
        ("console.listen", "registry.url", "registry.users", "kafka.bootstrap_servers", "loader.warehouse"),
    )
    serve.set_defaults(run_verb=serve_console)


def run(args: argparse.Namespace) -> int:
    """Runs the verb of `headrace console` that the command line names, and returns its exit code."""
    return int(args.run_verb(args))


def serve_console(args: argparse.Namespace) -> int:
    settings, origins = settings_from(args), origins_from(args)
    from headrace.console.errors import ConsoleError
    from headrace.console.server import check_settings, serve
    from headrace.pipeline.up.plan import child_environment
    from headrace.registry.api.listening import ReservedPort
    from headrace.registry.errors import TokenKeysUnusable, UsersFileUnusable

    address = settings.console.listen
    try:
        tls = registry_access.tls_of(settings.console)
        check_settings(settings)
        registry_access.users_of(settings.registry)
        settings.data_dir.mkdir(parents=True, exist_ok=True)
        check_database(settings)
    except (ConsoleError, UsersFileUnusable, TokenKeysUnusable) as error:
        raise CommandError(str(error)) from error
    try:
        reserved = ReservedPort(address.host, address.port)
    except OSError as error:
        raise CommandError(
            f"console cannot listen on {address}: {error.strerror or error}; stop the process that uses the port, or "
            "choose another address with --console-listen"
        ) from error
    environment = child_environment(os.environ, flag_values(args), args.config)
    return serve(reserved, lambda: _application(settings, origins, environment), tls)


def check_database(settings: Settings) -> None:
    """Checks the console's database and creates its tables, in a process of its own: this process watches the worker
    and would keep the libraries in memory.

    Raises:
        ConsoleUnusable: the database cannot be used.
    """
    import multiprocessing

    from headrace.console.errors import ConsoleUnusable

    context = multiprocessing.get_context("fork")
    problems = context.SimpleQueue()
    process = context.Process(target=_open_database, args=(settings, problems))
    process.start()
    process.join()
    if not problems.empty():
        raise ConsoleUnusable(problems.get())
    if process.exitcode:
        raise ConsoleUnusable(f"the console's database could not be checked: exit code {process.exitcode}")


def _open_database(settings: Settings, problems: SimpleQueue[str]) -> None:
    from headrace.console.actions.storage import ActionStore
    from headrace.console.database import ConsoleDatabase
    from headrace.console.errors import ConsoleUnusable
    from headrace.console.sessions import SessionStore

    try:
        database = ConsoleDatabase.of_settings(settings)
        SessionStore(database)
        ActionStore(database)
        database.close()
    except ConsoleUnusable as error:
        problems.put(str(error))


def _application(settings: Settings, origins: Mapping[str, str], environment: Mapping[str, str]) -> Flask:
    """Creates the pages and starts the worker of actions. Its commands have the given environment variables."""
    from headrace.console.commit_reader import CommitReader

    # Before the other imports, which then reuse the memory that the parser of the commits has freed: 11 MB if there are
    # ten thousand partitions.
    commits = CommitReader(settings)
    commits.read_ahead(READ_AHEAD_S)
    from headrace.console.actions.storage import ActionStore
    from headrace.console.actions.worker import ActionWorker, command_runner
    from headrace.console.app import create_app
    from headrace.console.context import EXTENSION
    from headrace.console.database import ConsoleDatabase
    from headrace.console.server import access_of
    from headrace.console.sessions import SessionStore

    access = access_of(settings, registry_access.users_of(settings.registry))
    database = ConsoleDatabase.of_settings(settings)
    sessions, actions = SessionStore(database), ActionStore(database)
    application = create_app(settings, access, sessions, actions, commits, version=VERSION, origins=origins)
    sources = application.extensions[EXTENSION].sources
    ActionWorker(actions, command_runner(environment), on_change=sources.forget).start()
    return application
