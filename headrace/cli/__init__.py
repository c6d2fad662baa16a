"""The `headrace` command: one module per subcommand, imported when the command line names that subcommand.

A subcommand module has `configure(parser)`. It also has `run(args) -> exit code`, unless each verb sets its own
function. Libraries of the extras are imported only by subcommands that need them, so that `headrace compat check`
starts without Flask or Spark installed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from headrace.cli.command import EXIT_FAILED, EXIT_OK, CommandError, CommandParser, os_error_message
from headrace.cli.terminal import paged
from headrace.settings import SettingsError
from headrace.settings.log_format import configure_logging, error_prefix
from headrace.version import VERSION, commit_id

SUBCOMMANDS = {
    "compat": "check schema changes for compatibility",
    "schema": "validate, register, download and lock schema files",
    "registry": "serve the schema registry; show and change its subjects; export, import, replicate",
    "broker": "serve the bundled Kafka-protocol broker; inspect topics, groups and log files",
    "load": "load every topic into its Hive table; show plan and status of loads",
    "files": "list the files of a topic's table, for programs that read paths",
    "locate": "find the file that holds the message at an offset",
    "verify": "compare files with commits and brokers",
    "backfill": "rewrite files from the messages that the brokers still have",
    "compact": "merge small files",
    "expire": "delete days beyond the retention time",
    "accept": "list open alarms of loads, and accept them",
    "accept-missing": "remove missing files from the commit log",
    "hive": "compare Hive tables with the loaded data, and repair them",
    "quarantine": "list, replay or discard messages that could not be loaded",
    "offsets": "show and change the next offset of each partition",
    "audit": "prove that no message was lost or duplicated",
    "sql": "query the tables",
    "up": "run registry, broker, metastore, SQL, auditor, console, gateway and loads on this machine",
    "gateway": "serve the HTTP API of the REST Proxy for producers and consumers without a Kafka client",
    "push": "tail files and send their lines to a gateway, each exactly once",
    "console": "serve web pages that show whether messages are complete",
    "status": "show on one screen each fault with its cause and its repair",
    "alerts": "deliver alerts about findings of status; silences, rules, log",
    "backup-state": "back up this machine's state while everything runs",
    "restore-state": "restore a backup of backup-state",
    "config": "show every setting, its value and its source",
    "doctor": "check this machine and the configured services",
    "demo": "run the whole pipeline on a year of flights",
    "completion": "print a completion script for the shell",
}

GROUPS = {
    "run": ("demo", "up", "load", "registry", "broker", "gateway", "push", "console"),
    "query": ("sql", "files", "locate"),
    "check": ("status", "compat", "schema", "audit", "verify", "alerts", "doctor"),
    "administer": (
        "hive",
        "quarantine",
        "offsets",
        "backfill",
        "compact",
        "expire",
        "accept",
        "accept-missing",
        "backup-state",
        "restore-state",
        "config",
        "completion",
    ),
}
"""Groups of subcommands in the help text."""

EXTRAS = {
    "compat": "registry",  # only for --against-db
    "registry": "registry",
    "broker": "broker",
    "load": "loader",
    "files": "loader",
    "locate": "loader",
    "verify": "loader",
    "backfill": "loader",
    "compact": "loader",
    "expire": "loader",
    "accept": "loader",
    "accept-missing": "loader",
    "hive": "loader",
    "quarantine": "loader",
    "offsets": "loader",
    "audit": "loader",
    "sql": "loader",
    "up": "all",
    "gateway": "gateway",
    "console": "all",
    "status": "all",
    "alerts": "all",
    "backup-state": "all",
    "restore-state": "all",
    "doctor": "all",
    "demo": "all",
}
"""By subcommand: the extra that installs its libraries, as in `pip install '.[loader]'` in a checkout."""

HELP_WORD = "help"

EPILOG = """\
examples:
  headrace demo                                             try it: a year of flights, with checked results
  headrace up                                               registry, broker, metastore and loads on this machine
  headrace compat check schemas --against git:origin/main   is this schema change compatible?

exit codes:
  0  success
  1  findings that need action, such as incompatible schemas, lost or quarantined messages
  2  failure: an error in the command line or settings, or a service that is not available

Settings come from headrace.toml, HEADRACE__<SECTION>__<KEY> in the environment, and flags.
Later sources override earlier ones. `headrace help COMMAND` and `headrace help COMMAND VERB` show details.
"""

LIBRARIES = frozenset(
    [
        "alembic",
        "confluent_kafka",
        "cramjam",
        "crc32c",
        "cryptography",
        "fastavro",
        "flask",
        "granian",
        "httptools",
        "jwt",
        "kafka",
        "lz4",
        "marshmallow",
        "puresasl",
        "py4j",
        "plotext",
        "pygal",
        "pyhive",
        "pyspark",
        "re2",
        "snappy",
        "sqlalchemy",
        "starlette",
        "thrift",
        "thrift_sasl",
        "uvicorn",
        "uvloop",
        "xxhash",
        "zlib_ng",
        "zstandard",
    ]
)
"""The libraries that the extras install. If the import of one of them fails in a subcommand of `EXTRAS`, the error
message names the extra to install. Any other failed import is a bug of Headrace."""


LIBRARY_LOG_LEVELS = {"py4j": logging.WARNING, "alembic": logging.WARNING, "kafka": logging.CRITICAL}
"""By library: the lowest level of its log lines that are shown. These libraries log errors that they also raise, or
from which they recover: kafka-python logs each failed attempt to connect to a broker as an error, and warns whenever
its event loop pauses for more than 0.1 s, which is frequent on a busy machine."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv`, by default that of the process, and returns its exit code: 0 success, 1 findings, 2
    failure, or a further code of the subcommand. Usage errors and `--help` raise SystemExit, Ctrl-C KeyboardInterrupt.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if sys.stdout is None:  # the shell closed it with `>&-`
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 (open until the process ends)
    _configure_logging()
    try:
        return _run(arguments)
    except (CommandError, SettingsError) as error:
        _print_error(error)
        try:
            sys.stdout.flush()
        except OSError:  # the error is already reported
            _drop_output()
        return error.exit_code if isinstance(error, CommandError) else EXIT_FAILED
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        extra = EXTRAS.get(_command_word(arguments))
        if library not in LIBRARIES or extra is None:
            raise
        _print_error(
            f"this command needs the library {library!r}, which the extra {extra!r} installs: reinstall "
            f"Headrace with it, see docs/install.md; in a checkout: pip install '.[{extra}]'"
        )
        return EXIT_FAILED
    except BrokenPipeError:
        # The reader of standard output has closed the pipe, as in `headrace … | head`.
        _drop_output()
        return EXIT_OK
    except OSError as error:
        # Commands translate the errors that they expect. The rest is mostly standard output on a full disk.
        _drop_output()
        _print_error(os_error_message(error))
        return EXIT_FAILED


def _print_error(message: object) -> None:
    print(f"{error_prefix()}headrace: {message}", file=sys.stderr)


def _run(arguments: Sequence[str]) -> int:
    """Runs a command line and returns its exit code. Flushes standard output before returning, because a write error
    can still be reported here."""
    try:
        parser = _parser(arguments)
        if arguments:
            args = parser.parse_args(arguments)
            with paged() if getattr(args, "pages", False) and not args.no_pager else contextlib.nullcontext():
                exit_code = int(args.run(args))
        else:
            parser.print_help()
            exit_code = EXIT_OK
    except SystemExit:  # raised by --help, for example
        sys.stdout.flush()
        raise
    sys.stdout.flush()
    return exit_code


def _drop_output() -> None:
    """Discards the buffered output after standard output could not be written. Otherwise the interpreter would try to
    write the buffer again when it exits, and report the same error a second time."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _configure_logging() -> None:
    configure_logging()
    for library, level in LIBRARY_LOG_LEVELS.items():
        logging.getLogger(library).setLevel(level)


class _PrintVersion(argparse.Action):
    """Prints the version. Determines the commit only then, because that starts git in a checkout."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        commit = commit_id()
        print(f"headrace {VERSION}{f' (commit {commit})' if commit else ''}")
        parser.exit()


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="headrace",
        usage="headrace [-h] [-V] [--no-pager] COMMAND …",
        description="Avro schema registry with an automatic Hadoop/Hive loader.",
        epilog=f"{_listing()}\n\n{EPILOG}",
    )
    parser.add_argument("-V", "--version", action=_PrintVersion, nargs=0, help="show the version and the git commit")
    parser.add_argument(
        "--no-pager", action="store_true", help="do not show long reports in $PAGER (default: less) on a terminal"
    )
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True, help=argparse.SUPPRESS, prog="headrace")
    command = _command_word(arguments)
    for name, summary in SUBCOMMANDS.items():
        # No `help`: the listing by groups shows the summary.
        subparser = subparsers.add_parser(name, description=summary[0].upper() + summary[1:] + ".")
        if name == command:
            _configure(subparser, name)
    help_parser = subparsers.add_parser(HELP_WORD, description="Shows the help of a command, as --help does.")
    help_parser.add_argument("words", metavar="COMMAND", nargs="*", help="a command, and one of its verbs")
    help_parser.set_defaults(run=_help)
    return parser


def _help(args: argparse.Namespace) -> NoReturn:
    _parser(args.words).parse_args([*args.words, "--help"])
    raise AssertionError("argparse did not exit after it printed the help")


def command_parser(name: str) -> argparse.ArgumentParser:
    """Returns the parser of a subcommand, such as `load`, and of its verbs."""
    parser = CommandParser(prog=f"headrace {name}")
    _configure(parser, name)
    return parser


def _configure(parser: argparse.ArgumentParser, name: str) -> None:
    module = importlib.import_module(f"headrace.cli.{name.replace('-', '_')}")
    module.configure(parser)
    if parser.get_default("run") is None:
        parser.set_defaults(run=module.run)


def _listing() -> str:
    """Returns the list of subcommands for the help text, in the groups of `GROUPS`."""
    width = max(map(len, SUBCOMMANDS))
    groups = (
        "\n".join((f"{title}:", *(f"  {name:{width}}  {SUBCOMMANDS[name]}" for name in names)))
        for title, names in GROUPS.items()
    )
    return "\n\n".join(groups)


def _command_word(arguments: Sequence[str]) -> str:
    return next((word for word in arguments if not word.startswith("-")), "")
