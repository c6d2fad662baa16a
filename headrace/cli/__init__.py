"""The `headrace` command: one module per subcommand, imported only when it is asked for.

A subcommand module has `configure(parser)` and `run(args) -> exit code`. Packages are imported inside it, so that
`headrace compat check` starts without Flask or Spark installed.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from headrace.cli.command import EXIT_FAILED, EXIT_OK, CommandError, CommandParser
from headrace.settings import SettingsError
from headrace.settings.log_format import configure_logging
from headrace.version import VERSION

SUBCOMMANDS = {
    "compat": "check schema changes for compatibility",
    "schema": "validate, register, download and lock schema files",
    "registry": "serve the schema registry; copy what a registry holds",
    "broker": "serve the bundled Kafka-protocol broker; look at topics, groups and files",
    "load": "load every topic into its Hive table; plan and status of loads",
    "files": "which files a topic's rows are in, for readers of paths",
    "locate": "where the message of one offset is",
    "verify": "compare files with commits and brokers",
    "backfill": "make files again from what the brokers still hold",
    "compact": "make few files of many small ones",
    "expire": "remove days that are older than they are kept",
    "accept-missing": "accept that published files are gone",
    "hive": "compare tables with what is loaded, and mend them",
    "quarantine": "messages that could not be loaded",
    "offsets": "where every partition goes on, and commits of operators about it",
    "audit": "prove that nothing was lost or doubled",
    "sql": "query the tables",
    "up": "run everything on this machine",
    "config": "every setting, its value and where it comes from",
    "doctor": "look at what Headrace needs here, and say what to do",
    "demo": "a year of flights from producer to Hive table",
    "completion": "make a shell complete commands and options",
}

GROUPS = {
    "run": ("demo", "up", "load", "registry", "broker"),
    "query": ("sql", "files", "locate"),
    "check": ("compat", "schema", "audit", "verify", "doctor"),
    "administer": (
        "hive",
        "quarantine",
        "offsets",
        "backfill",
        "compact",
        "expire",
        "accept-missing",
        "config",
        "completion",
    ),
}
"""How the help lists the subcommands: by what somebody wants to do."""

EXTRAS = {
    "registry": "registry",
    "broker": "broker",
    "load": "loader",
    "files": "loader",
    "locate": "loader",
    "verify": "loader",
    "backfill": "loader",
    "compact": "loader",
    "expire": "loader",
    "accept-missing": "loader",
    "hive": "loader",
    "quarantine": "loader",
    "offsets": "loader",
    "audit": "producer",
    "sql": "loader",
    "up": "all",
    "doctor": "all",
    "demo": "all",
}
"""Which extra brings the libraries of a subcommand."""

HELP_WORD = "help"

EPILOG = """\
examples:
  headrace demo                                             try it: a year of flights, checked
  headrace up                                               registry, broker, metastore and loads, here
  headrace compat check schemas/ --against git:origin/main  may this schema change go out?

exit codes:
  0  fine
  1  findings that a person must act on: incompatible, lost, held back
  2  could not tell: a mistake in the command line or settings, or something did not answer

Settings come from headrace.toml, HEADRACE__<SECTION>__<KEY> in the environment, and flags, later ones winning.
`headrace help COMMAND` and `headrace help COMMAND VERB` say more.
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
        "jwt",
        "kafka",
        "lz4",
        "marshmallow",
        "puresasl",
        "py4j",
        "pyhive",
        "pyspark",
        "re2",
        "snappy",
        "sqlalchemy",
        "thrift",
        "thrift_sasl",
        "uvicorn",
        "xxhash",
        "zlib_ng",
        "zstandard",
    ]
)
"""What the extras bring; a module missing beyond these is a fault of ours."""


CHATTY = {"py4j": logging.WARNING, "alembic": logging.WARNING, "kafka": logging.CRITICAL}
"""Libraries that log what they also raise or mend: kafka-python logs each attempt to reach a broker as an error,
and warns of each pause of its own event loop beyond 0.1 s, which on a busy machine is all the time."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code: 0 fine, 1 findings, 2 could not tell."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if sys.stdout is None:  # closed by the shell, `>&-`
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  (until the end)
    _configure_logging()
    try:
        return _run(arguments)
    except (CommandError, SettingsError) as error:
        print(f"headrace: {error}", file=sys.stderr)
        try:
            sys.stdout.flush()
        except OSError:  # what there is to say has been said
            _drop_output()
        return error.exit_code if isinstance(error, CommandError) else EXIT_FAILED
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        extra = EXTRAS.get(_command_word(arguments))
        if library not in LIBRARIES or extra is None:
            raise
        print(
            f"headrace: this command needs the library {library!r}, which the extra {extra!r} brings: install that "
            f"from where Headrace came, as docs/install.md says; in its checkout: pip install '.[{extra}]'",
            file=sys.stderr,
        )
        return EXIT_FAILED
    except BrokenPipeError:
        # The reader of our output has gone (`headrace … | head`).
        _drop_output()
        return EXIT_OK
    except OSError as error:
        # Each command names what it expects to fail; what is left is mostly a full disk under standard output.
        _drop_output()
        print(f"headrace: {error.strerror or error}{f': {error.filename}' if error.filename else ''}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print("headrace: interrupted", file=sys.stderr)
        return 130


def _run(arguments: Sequence[str]) -> int:
    """Runs one command line and lets its output out here, where it can be told that there is no place for it."""
    try:
        parser = _parser(arguments)
        if arguments:
            args = parser.parse_args(arguments)
            exit_code = int(args.run(args))
        else:
            parser.print_help()
            exit_code = EXIT_OK
    except SystemExit:  # of --help, among others
        sys.stdout.flush()
        raise
    sys.stdout.flush()
    return exit_code


def _drop_output() -> None:
    """What is still to be written, which else the interpreter would try at its end, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _configure_logging() -> None:
    configure_logging()
    for chatty, level in CHATTY.items():
        logging.getLogger(chatty).setLevel(level)


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="headrace",
        usage="headrace [-h] [-V] COMMAND …",
        description="Avro schema registry with an automatic Hadoop/Hive loader.",
        epilog=f"{_listing()}\n\n{EPILOG}",
    )
    parser.add_argument("-V", "--version", action="version", version=f"headrace {VERSION}", help="show the version")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True, help=argparse.SUPPRESS, prog="headrace")
    wanted = _command_word(arguments)
    for name, summary in SUBCOMMANDS.items():
        # Without a help of its own, since the listing by groups has it.
        subparser = subparsers.add_parser(name, description=summary[0].upper() + summary[1:] + ".")
        if name == wanted:
            _configure(subparser, name)
    helping = subparsers.add_parser(HELP_WORD, description="Says what a command does, as its --help.")
    helping.add_argument("words", metavar="COMMAND", nargs="*", help="a command, and one of its verbs")
    helping.set_defaults(run=_help)
    return parser


def _help(args: argparse.Namespace) -> NoReturn:
    _parser(args.words).parse_args([*args.words, "--help"])
    raise AssertionError("--help ends the command")


def command_parser(name: str) -> argparse.ArgumentParser:
    """The parser of one subcommand, with its verbs."""
    parser = CommandParser(prog=f"headrace {name}")
    _configure(parser, name)
    return parser


def _configure(parser: argparse.ArgumentParser, name: str) -> None:
    module = importlib.import_module(f"headrace.cli.{name.replace('-', '_')}")
    module.configure(parser)
    if parser.get_default("run") is None:
        parser.set_defaults(run=module.run)


def _listing() -> str:
    """The subcommands by groups."""
    width = max(map(len, SUBCOMMANDS))
    groups = (
        "\n".join((f"{title}:", *(f"  {name:{width}}  {SUBCOMMANDS[name]}" for name in names)))
        for title, names in GROUPS.items()
    )
    return "\n\n".join(groups)


def _command_word(arguments: Sequence[str]) -> str:
    return next((word for word in arguments if not word.startswith("-")), "")
