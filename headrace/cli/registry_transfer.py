"""`headrace registry export` and `import`: copies the content of a registry to and from a file, through its REST
API."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TextIO

from headrace.cli.command import (
    EXIT_FINDINGS,
    EXIT_OK,
    CommandError,
    add_format_flag,
    add_settings_flags,
    examples,
    print_json,
    settings_from,
)
from headrace.cli.report import ROWS_SHOWN_MAX, add_all_flag, count_text, print_lines

if TYPE_CHECKING:
    from headrace.registry.transfer.plan import ImportAction, ImportProblem
    from headrace.registry.transfer.remote import RemoteRegistry
    from headrace.registry.transfer.snapshot import Selection, Snapshot

logger = logging.getLogger(__name__)

STANDARD_STREAM: Final = "-"
BAR_WIDTH: Final = 30  # characters
BAR_PAUSE_S: Final = 0.1  # between two updates of the bar
LOG_PAUSE_S: Final = 10.0  # between two log lines without a terminal

IMPORT_EXIT_CODES: Final = """

exit codes:
  0  the registry has the content of the file
  1  conflicting ids or rejected versions; found before the first write if possible
  2  failure: the file cannot be read, or the registry is not available
"""

ACTION_WORDS: Final = {
    "RegisterVersion": "registered",
    "SoftDeleteVersion": "deleted",
    "SetConfig": "configurations",
    "SetMode": "modes",
}
"""Words for the types of import actions, for the summary."""


def add_verbs(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `export` and `import` to the verbs of `headrace registry`."""
    _configure_export(
        verbs.add_parser(
            "export",
            help="export a registry to a file",
            description="Writes the schemas of a registry, with ids, versions, deleted flags, configurations and "
            "modes, to a file of JSON lines. Works with all registries that have the Confluent Schema "
            "Registry API.",
            epilog=examples(
                "registry export registry.jsonl",
                "registry export eu.jsonl --context eu --registry-url http://registry.example.com:8081",
            ),
        )
    )
    _configure_import(
        verbs.add_parser(
            "import",
            help="import a file into a registry",
            description="Registers the content of an export with the same ids and versions. Existing versions "
            "remain, so that the same command continues an interrupted import. Works with all registries "
            "that have the Confluent Schema Registry API and its IMPORT mode.",
            epilog=examples(
                "registry import registry.jsonl --dry-run",
                "registry import registry.jsonl --registry-url http://registry.example.com:8081",
            )
            + IMPORT_EXIT_CODES,
        )
    )


def _configure_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the file to write; - is standard output")
    _add_selection(parser, "export")
    add_settings_flags(parser, ("registry.url",))
    add_format_flag(parser)
    parser.set_defaults(run_verb=run_export)


def _configure_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the export to read; - is standard input")
    parser.add_argument("--dry-run", action="store_true", help="show the changes without making them")
    parser.add_argument(
        "--skip-rejected",
        action="store_true",
        help="omit versions that the target registry rejects, and the versions that reference them",
    )
    add_all_flag(parser)
    _add_selection(parser, "import")
    add_settings_flags(parser, ("registry.url",))
    add_format_flag(parser)
    parser.set_defaults(run_verb=run_import)


def _add_selection(parser: argparse.ArgumentParser, verb: str) -> None:
    parser.add_argument(
        "--subject",
        action="append",
        default=[],
        metavar="PATTERN",
        help=f"{verb} only subjects that match (* ? [a-z]; without the context), and the subjects that they "
        "reference; may be repeated",
    )
    parser.add_argument(
        "--context",
        action="append",
        default=[],
        metavar="NAME",
        help=f"{verb} only this context (. is the default context), and the schemas that it references; may be "
        "repeated",
    )


def run_export(args: argparse.Namespace) -> int:
    from headrace.registry.errors import RegistryError
    from headrace.registry.transfer.export import read_registry
    from headrace.registry.transfer.export_file import write_snapshot

    try:
        with _remote(args) as remote, TransferProgress() as progress:
            snapshot = read_registry(remote, _selection(args), progress.show)
    except RegistryError as error:
        raise CommandError(f"nothing was exported: {error}") from error
    with _replaced_file(args.file) as out:
        write_snapshot(snapshot, out)
    facts = _content_facts(snapshot)
    if args.file == STANDARD_STREAM:
        logger.info("exported %s", " ".join(f"{name}={count}" for name, count in facts.items()))
    elif args.format == "json":
        print_json({"file": args.file, **facts})
    else:
        print(f"exported {facts_text(facts)} to {args.file}")
    return EXIT_OK


def run_import(args: argparse.Namespace) -> int:
    from headrace.registry.errors import RegistryError
    from headrace.registry.transfer.execution import plan_importable, read_target
    from headrace.registry.transfer.plan import plan_import

    snapshot = _selection(args).select_from(_read(args.file))
    skipped: list[ImportProblem] = []
    with _remote(args) as remote:
        try:
            with TransferProgress() as progress:
                target = read_target(remote, snapshot, progress.show)
        except RegistryError as error:
            raise CommandError(f"nothing was imported: {error}") from error
        plan = plan_import(snapshot, target)
        if args.skip_rejected:
            snapshot, plan, skipped = plan_importable(snapshot, target)
        if plan.problems:
            return _report_problems(args, plan.problems)
        if args.dry_run:
            return _report_plan(args, plan.actions, skipped)
        return _import_actions(args, remote, snapshot, plan.actions, skipped)


def _import_actions(
    args: argparse.Namespace,
    remote: RemoteRegistry,
    snapshot: Snapshot,
    actions: Sequence[ImportAction],
    skipped: list[ImportProblem],
) -> int:
    from headrace.registry.errors import RegistryError
    from headrace.registry.transfer.execution import execute_actions, find_missing_versions

    try:
        with TransferProgress() as progress:
            result = execute_actions(remote, actions, progress.show, skip_rejected=args.skip_rejected)
            rejected = [*skipped, *result.rejected]
            differences = (
                find_missing_versions(remote, snapshot, progress.show, {item.key for item in rejected if item.key})
                if actions and result.is_finished
                else []
            )
    except RegistryError as error:
        raise CommandError(
            f"the import stopped: {error}; the imported versions remain; import the same file again to continue"
        ) from error
    _report_import(args, _action_facts(result.done), rejected, differences, result.is_finished)
    if not result.is_finished:
        refusals = count_text(len(result.rejected), "version")
        raise CommandError(
            f"the target registry rejected {refusals}; configurations and modes are unchanged; fix the versions and "
            "import again, or omit them with --skip-rejected",
            EXIT_FINDINGS,
        )
    if differences:
        raise CommandError(
            f"the target registry has other ids or states than the file for {count_text(len(differences), 'version')}; "
            "check whether another client writes to that registry",
            EXIT_FINDINGS,
        )
    return EXIT_OK


def _report_problems(args: argparse.Namespace, problems: Sequence[ImportProblem]) -> int:
    if args.format == "json":
        print_json({"problems": [problem.sentence for problem in problems]})
    else:
        print_lines([f"PROBLEM: {problem.sentence}" for problem in problems], shows_all=args.all)
    advice = "; --skip-rejected imports the rest" if all(problem.can_be_skipped for problem in problems) else ""
    raise CommandError(
        f"nothing was imported, because of {count_text(len(problems), 'problem')}{advice}", EXIT_FINDINGS
    )


def _report_plan(args: argparse.Namespace, actions: Sequence[ImportAction], skipped: Sequence[ImportProblem]) -> int:
    facts = _action_facts(actions)
    if args.format == "json":
        print_json(
            {"dry_run": True, **facts, "skipped": _sentences(skipped), "actions": [str(action) for action in actions]}
        )
        return EXIT_OK
    print(f"would do: {facts_text(facts)}; nothing was written" if actions else "nothing to do")
    print_lines([f"left out: {sentence}" for sentence in _sentences(skipped)], shows_all=args.all)
    print_lines([f"would do: {action}" for action in actions], shows_all=args.all, lines_max=ROWS_SHOWN_MAX)
    return EXIT_OK


def _report_import(
    args: argparse.Namespace,
    facts: dict[str, int],
    rejected: Sequence[ImportProblem],
    differences: Sequence[str],
    finished: bool,
) -> None:
    if args.format == "json":
        print_json(
            {
                "dry_run": False,
                **facts,
                "finished": finished,
                "skipped": _sentences(rejected),
                "differences": differences,
            }
        )
        return
    done = (
        f"imported: {facts_text(facts)}"
        if any(facts.values())
        else "nothing to do: the registry has all schemas of the file"
    )
    print(done)
    print_lines([f"left out: {sentence}" for sentence in _sentences(rejected)], shows_all=args.all)
    print_lines([f"FINDING: {sentence}" for sentence in differences], shows_all=args.all)


def _sentences(problems: Sequence[ImportProblem]) -> list[str]:
    return [problem.sentence for problem in problems]


def _content_facts(snapshot: Snapshot) -> dict[str, int]:
    return {
        "versions": len(snapshot.versions),
        "deleted": sum(version.deleted for version in snapshot.versions),
        "subjects": len(snapshot.subjects),
        "contexts": len({version.context for version in snapshot.versions}),
        "configurations": len(snapshot.configs),
        "modes": len(snapshot.modes),
    }


def _action_facts(actions: Sequence[ImportAction]) -> dict[str, int]:
    counts = Counter(ACTION_WORDS[type(action).__name__] for action in actions)
    return {word: counts[word] for word in ACTION_WORDS.values()}


def facts_text(facts: dict[str, int]) -> str:
    """Returns counts as text, such as `1 version, 2 subjects`. The names are plurals."""
    return ", ".join(f"{count} {name.removesuffix('s') if count == 1 else name}" for name, count in facts.items())


def _selection(args: argparse.Namespace) -> Selection:
    from headrace.registry.errors import InvalidSubject
    from headrace.registry.names import context_name
    from headrace.registry.transfer.snapshot import Selection

    try:
        contexts = tuple(context_name(name) for name in args.context)
    except InvalidSubject as error:
        raise CommandError(f"--context: expected the name of a context, such as .eu: {error}") from error
    return Selection(contexts, tuple(args.subject))


@contextlib.contextmanager
def _remote(args: argparse.Namespace) -> Iterator[RemoteRegistry]:
    from headrace.registry.client.of_settings import registry_client
    from headrace.registry.errors import RegistryError
    from headrace.registry.transfer.remote import RemoteRegistry

    try:
        client = registry_client(settings_from(args))
    except RegistryError as error:
        raise CommandError(str(error)) from error
    with client:
        yield RemoteRegistry(client)


def _read(file: str) -> Snapshot:
    from headrace.registry.errors import RegistryError
    from headrace.registry.transfer.export_file import read_snapshot

    try:
        if file == STANDARD_STREAM:
            return read_snapshot(sys.stdin.buffer, "standard input")
        with Path(file).open("rb") as source:
            return read_snapshot(source, file)
    except OSError as error:
        raise CommandError(f"cannot read {file}: {error.strerror}; check the path and its permissions") from error
    except RegistryError as error:
        raise CommandError(str(error)) from error


@contextlib.contextmanager
def _replaced_file(file: str) -> Iterator[BinaryIO]:
    """Yields a temporary file to write, which replaces `file` only when it is complete; standard output if `file` is
    `-`."""
    if file == STANDARD_STREAM:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(file)
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as out:
                yield out
                out.flush()
                os.fsync(out.fileno())
            Path(temporary).chmod(0o666 & ~_umask())
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise CommandError(
            f"cannot write {file}: {error.strerror}; check the directory, its permissions and its free space"
        ) from error


def _umask() -> int:
    """Returns the process's umask. The operating system only returns it when a new one is set, so it is set and
    restored."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


class TransferProgress:
    """Shows how far an export or import is: as a bar on a terminal, and as periodic log lines elsewhere."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = sys.stderr if out is None else out
        self._draws = self._out.isatty() and os.environ.get("TERM") != "dumb"
        self._shown_at = time.monotonic()

    def __enter__(self) -> TransferProgress:
        return self

    def __exit__(self, *_: Any) -> None:
        if self._draws:
            self._write("\r\x1b[K")

    def show(self, step: str, done: int, total: int) -> None:
        """Shows that `done` of `total` items of a step, such as the registration of schemas, are finished. `total` is 0
        if it is unknown. Does nothing if the last update is less than `BAR_PAUSE_S` or `LOG_PAUSE_S` ago."""
        now = time.monotonic()
        if now - self._shown_at < (BAR_PAUSE_S if self._draws else LOG_PAUSE_S):
            return
        self._shown_at = now
        if self._draws:
            self._write(f"\r\x1b[K{bar(step, done, total)}")
        else:
            logger.info("transfer_progress step=%r done=%d total=%s", step, done, total or "unknown")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, UnicodeError):
            self._out.write(text)
            self._out.flush()


def bar(step: str, done: int, total: int) -> str:
    """Formats as one line how many of the `total` items of a step are done."""
    if not total:
        return f"{step} {done}"
    filled = BAR_WIDTH * done // total
    return f"{step} [{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {done}/{total}"
