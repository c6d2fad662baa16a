"""`headrace push`: tails files and sends their lines to a gateway. The single-file program has the same verbs."""

from __future__ import annotations

import argparse

from headrace.cli.command import CommandError
from headrace.push import command
from headrace.push.config import PushError


def configure(parser: argparse.ArgumentParser) -> None:
    command.configure(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the verb of `headrace push` that the command line names, and returns its exit code."""
    try:
        return int(args.run_verb(args))
    except PushError as error:
        raise CommandError(str(error)) from error
