"""`headrace registry subjects`, `versions`, `show`, `lookup`, `level`, `mode`, `delete` and `history`.

They read and change a running registry through its API, with the user of `registry.client_…`. `history` reads the audit
log on the registry's host. `headrace schema` works on schema files instead.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from headrace.cli.command import (
    EXIT_FINDINGS,
    EXIT_OK,
    CommandError,
    add_format_flag,
    add_settings_flags,
    examples,
    os_error_message,
    print_json,
    settings_from,
)
from headrace.cli.registry_access import audit_log_target
from headrace.cli.report import ReportRow, TextReport, add_all_flag, count_text, print_report
from headrace.kafka_wire.topic_patterns import matching_topics, similar_topic

if TYPE_CHECKING:
    from headrace.registry.client import RegisteredSchema, RegistryClient
    from headrace.registry.domain import SchemaReference
    from headrace.registry.errors import RegistryError

LEVELS: Final = (
    "NONE",
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
)
MODES: Final = ("READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT", "FORWARD")
DEFAULT_SCOPE: Final = ":.:"
SCHEMA_BYTES_MAX: Final = 64 * 1024 * 1024
SUBJECT_HELP: Final = "subject, such as orders-value or :.eu:orders-value"
SCOPE_HELP: Final = "subject, or context such as :.eu: (default: the default context, :.:)"


def add_verbs(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the verbs of this module to `headrace registry`."""
    _add_reading_verbs(verbs)
    _add_changing_verbs(verbs)


def _add_reading_verbs(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    subjects = verbs.add_parser(
        "subjects",
        help="list the subjects",
        description="Lists the subjects of all contexts that the user may read.",
        epilog=examples("registry subjects", "registry subjects 'orders*'", "registry subjects --prefix :.eu:"),
    )
    subjects.add_argument("pattern", nargs="?", metavar="PATTERN", help="only matching subjects, such as 'orders*'")
    subjects.add_argument("--prefix", help="only subjects that begin with this; :.eu: lists a context")
    subjects.add_argument("--deleted", action="store_true", help="include soft-deleted subjects")
    add_all_flag(subjects)
    _finish(subjects, list_subjects)

    versions = verbs.add_parser(
        "versions",
        help="list the versions of a subject",
        description="Lists the versions of a subject with their schema ids.",
        epilog=examples("registry versions orders-value", "registry versions :.eu:orders-value --deleted"),
    )
    versions.add_argument("subject", metavar="SUBJECT", help=SUBJECT_HELP)
    versions.add_argument("--deleted", action="store_true", help="include soft-deleted versions")
    add_all_flag(versions)
    _finish(versions, list_versions)

    show = verbs.add_parser(
        "show",
        help="print a schema",
        description="Prints a version of a subject, or a schema by its id. A version given by number may be "
        "soft-deleted.",
        epilog=examples(
            "registry show orders-value", "registry show orders-value 3", "registry show --id 17 --format json"
        ),
    )
    show.add_argument("subject", nargs="?", metavar="SUBJECT", help=SUBJECT_HELP)
    show.add_argument("version", nargs="?", default="latest", metavar="VERSION", help="number or latest (the default)")
    show.add_argument("--id", type=int, metavar="ID", help="schema id, in the context of SUBJECT if that is given")
    _finish(show, show_schema)

    lookup = verbs.add_parser(
        "lookup",
        help="find the version that has a schema",
        description="Prints the version and id under which a schema is registered. Exits with 1 if the subject has no "
        "version with this schema.",
        epilog=examples(
            "registry lookup orders-value schemas/orders.avsc",
            "registry lookup orders-value orders.avsc --reference shop.Money=money-value:2",
        ),
    )
    lookup.add_argument("subject", metavar="SUBJECT", help=SUBJECT_HELP)
    lookup.add_argument("file", metavar="FILE", help="schema file; - reads standard input")
    lookup.add_argument(
        "--reference",
        action="append",
        default=[],
        metavar="NAME=SUBJECT:VERSION",
        help="version that defines a type which the schema uses; may be repeated",
    )
    lookup.add_argument("--deleted", action="store_true", help="include soft-deleted versions")
    lookup.add_argument("--normalize", action="store_true", help="compare normalized schemas")
    _finish(lookup, look_up)

    history = verbs.add_parser(
        "history",
        help="show who changed a subject",
        description="Prints the changes of a subject, and of the settings that it inherits, from the audit log "
        "(registry.audit_log). Run it on the registry's host.",
        epilog=examples("registry history orders-value", "registry history :.eu:orders-value --format json"),
    )
    history.add_argument("subject", metavar="SUBJECT", help="subject, or context such as :.eu:")
    add_all_flag(history)
    _finish(history, show_history, ())


def _add_changing_verbs(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    level = verbs.add_parser(
        "level",
        help="show or set the compatibility level",
        description="Prints or sets the compatibility level of a subject, of a context, or of the default context, "
        "from which subjects inherit.",
        epilog=examples(
            "registry level orders-value",
            "registry level orders-value FULL",
            "registry level orders-value --unset",
            "registry level :.: BACKWARD_TRANSITIVE",
        ),
    )
    level.add_argument("subject", nargs="?", default=DEFAULT_SCOPE, metavar="SUBJECT", help=SCOPE_HELP)
    level.add_argument("value", nargs="?", type=str.upper, choices=LEVELS, metavar="LEVEL", help=", ".join(LEVELS))
    level.add_argument("--unset", action="store_true", help="remove the level, so that it is inherited")
    _finish(level, show_or_set_level)

    mode = verbs.add_parser(
        "mode",
        help="show or set the mode",
        description="Prints or sets the mode of a subject, of a context, or of the default context. IMPORT without "
        "--force permanently deletes the soft-deleted versions.",
        epilog=examples("registry mode", "registry mode orders-value READONLY", "registry mode orders-value --unset"),
    )
    mode.add_argument("subject", nargs="?", default=DEFAULT_SCOPE, metavar="SUBJECT", help=SCOPE_HELP)
    mode.add_argument("value", nargs="?", type=str.upper, choices=MODES, metavar="MODE", help=", ".join(MODES))
    mode.add_argument("--unset", action="store_true", help="remove the mode, so that it is inherited")
    mode.add_argument("--force", action="store_true", help="set IMPORT even if there are versions, and delete none")
    mode.add_argument("--yes", action="store_true", help="set IMPORT without asking")
    _finish(mode, show_or_set_mode)

    delete = verbs.add_parser(
        "delete",
        help="delete a subject or version",
        description="Soft-deletes a subject or one version: it is no longer listed, and messages with its schema ids "
        "stay readable. --permanent then removes it, so that its messages are no longer readable.",
        epilog=examples(
            "registry delete orders-value --version 3",
            "registry delete orders-value",
            "registry delete orders-value --permanent",
        ),
    )
    delete.add_argument("subject", metavar="SUBJECT", help=SUBJECT_HELP)
    delete.add_argument("--version", metavar="VERSION", help="only this version; a number or latest")
    delete.add_argument("--permanent", action="store_true", help="remove soft-deleted versions for ever")
    delete.add_argument("--yes", action="store_true", help="delete permanently without asking")
    _finish(delete, delete_versions)


def _finish(parser: argparse.ArgumentParser, run: Any, settings: Sequence[str] = ("registry.url",)) -> None:
    add_format_flag(parser)
    add_settings_flags(parser, settings)
    parser.set_defaults(run_verb=run)


@contextmanager
def _client(args: argparse.Namespace) -> Iterator[RegistryClient]:
    """Yields a client of the configured registry.

    Raises:
        CommandError: an error of the registry, in one line with object, problem and remedy.
    """
    from headrace.registry.client.of_settings import registry_client
    from headrace.registry.errors import RegistryError

    url = ""
    try:
        with registry_client(settings_from(args)) as client:
            url = client.url
            yield client
    except RegistryError as error:
        raise CommandError(_error_text(error, url)) from None


def _error_text(error: RegistryError, url: str) -> str:
    from headrace.registry import errors

    subject, version = error.subject, error.version
    of_version = f"subject {subject} version {version}"
    quoted = shlex.quote(subject or "")  # in commands, so that a shell takes any subject as one argument
    texts: Mapping[type[RegistryError], str] = {
        errors.CredentialsRefused: f"{url}: {error}",
        errors.AccessDenied: f"{url}: {error}; grant the permission in the registry's users file, or use another "
        "registry.client_user",
        errors.SubjectNotFound: f"subject {subject} does not exist in {url}; see: headrace registry subjects --deleted",
        errors.VersionNotFound: f"{of_version} does not exist; see: headrace registry versions {quoted} --deleted",
        errors.SubjectSoftDeleted: f"subject {subject} is soft-deleted already; --permanent removes it for ever",
        errors.VersionSoftDeleted: f"{of_version} is soft-deleted already; --permanent removes it for ever",
        errors.SubjectNotSoftDeleted: f"subject {subject} has versions that are not soft-deleted; first run: headrace "
        f"registry delete {quoted}",
        errors.VersionNotSoftDeleted: f"{of_version} is not soft-deleted; first run: headrace registry delete "
        f"{quoted} --version {version}",
        errors.ReferenceExists: f"{of_version if version else f'subject {subject}'} cannot be deleted: {error} Delete "
        "the versions that refer to it first; headrace registry show prints what refers to a version",
        errors.OperationNotPermitted: f"{error}; see: headrace registry mode {quoted}",
        errors.SchemaNotFound: f"{url}: {error}; ids differ between registries and contexts, check registry.url",
        errors.InvalidSubject: f"the subject {subject!r} is not valid; expected a name, or :.context:name",
        errors.InvalidVersion: f"the version {version!r} is not valid; expected a number or latest",
    }
    return next((texts[kind] for kind in type(error).__mro__ if kind in texts), str(error))


def list_subjects(args: argparse.Namespace) -> int:
    with _client(args) as client:
        live = client.subjects(args.prefix)
        every = client.subjects(args.prefix, deleted=True) if args.deleted else live
    present = set(live)
    chosen = matching_topics(args.pattern or "*", every)
    if args.pattern and not chosen:
        similar = similar_topic(args.pattern, every)
        hint = f"did you mean {similar}?" if similar else "see: headrace registry subjects --deleted"
        raise CommandError(f"no subject of {client.url} matches {args.pattern!r}; {hint}")
    if args.format == "json":
        print_json({"format": 1, "subjects": [{"subject": name, "deleted": name not in present} for name in chosen]})
        return EXIT_OK
    deleted = sum(name not in present for name in chosen)
    totals = f"{count_text(len(chosen), 'subject')}{f', {deleted:,} of them deleted' if args.deleted else ''}"
    header = ("SUBJECT", "STATE") if args.deleted else ("SUBJECT",)
    rows = tuple(ReportRow((name, "" if name in present else "deleted")[: len(header)]) for name in chosen)
    print_report(TextReport(totals, "subject", header, rows, is_listing=True), shows_all=args.all)
    return EXIT_OK


def list_versions(args: argparse.Namespace) -> int:
    with _client(args) as client:
        numbers = client.versions(args.subject, deleted=args.deleted)
        live = _live_versions(client, args.subject) if args.deleted else set(numbers)
        found = [client.version(args.subject, number) for number in numbers]
    if args.format == "json":
        rows = [{"version": one.version, "id": one.schema_id, "deleted": one.version not in live} for one in found]
        print_json({"format": 1, "subject": args.subject, "versions": rows})
        return EXIT_OK
    cells = [(str(one.version), str(one.schema_id), "" if one.version in live else "deleted") for one in found]
    totals = f"{args.subject}: {count_text(len(cells), 'version')}"
    header = ("VERSION", "ID", "STATE")
    report = TextReport(totals, "version", header, _newest_first(cells), (0, 1), is_listing=True)
    print_report(report, shows_all=args.all)
    return EXIT_OK


def _live_versions(client: RegistryClient, subject: str) -> set[int]:
    from headrace.registry.errors import SubjectNotFound

    try:
        return set(client.versions(subject))
    except SubjectNotFound:  # all versions are soft-deleted
        return set()


def show_schema(args: argparse.Namespace) -> int:
    if args.id is None and args.subject is None:
        raise CommandError("name a subject, or a schema with --id")
    with _client(args) as client:
        if args.id is None:
            shown = client.version(args.subject, _version(args.version))
            users = client.referenced_by(args.subject, shown.version or _version(args.version))
        else:
            shown, users = client.schema_by_id(args.id, args.subject or ""), []
        used_by = [] if args.id is None else client.usages(args.id, args.subject or "")
    facts = {
        "subject": shown.subject,
        "version": shown.version,
        "id": shown.schema_id,
        "guid": shown.guid or None,
        "type": shown.schema_type,
        "references": [f"{one.name}={one.subject}:{one.version}" for one in shown.references],
        "referenced_by_ids": users,
        "used_by": [f"{one.subject}:{one.version}" for one in used_by],
        "metadata": dict(shown.metadata),
    }
    if args.format == "json":
        print_json({"format": 1, **facts, "schema": _parsed(shown)})
        return EXIT_OK
    for name, value in facts.items():
        if value not in (None, [], {}):
            print(f"{name.replace('_', ' ')}: {_plain(value)}")
    print()
    print(_pretty(shown))
    return EXIT_OK


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={item}" for key, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _parsed(schema: RegisteredSchema) -> Any:
    """Returns an Avro schema as JSON, and the text of another schema."""
    try:
        return json.loads(schema.text)
    except (ValueError, RecursionError):
        return schema.text


def _pretty(schema: RegisteredSchema) -> str:
    parsed = _parsed(schema)
    return schema.text if parsed is schema.text else json.dumps(parsed, indent=2, ensure_ascii=False)


def _version(text: str) -> int | Literal["latest"]:
    if text == "latest":
        return "latest"
    if not (text.isascii() and text.isdigit() and 0 < int(text[:11]) < 2**31):
        raise CommandError(f"the version {text!r} is not valid; expected a number or latest")
    return int(text)


def look_up(args: argparse.Namespace) -> int:
    from headrace.registry.errors import InvalidSchema, SchemaNotFound, SubjectNotFound

    text = _schema_text(args.file)
    references = [_reference(item) for item in args.reference]
    with _client(args) as client:
        try:
            found = client.lookup(args.subject, text, references, deleted=args.deleted, normalize=args.normalize)
        except (SchemaNotFound, SubjectNotFound):
            return _not_registered(args)
        except InvalidSchema as error:
            raise CommandError(f"the schema in {args.file} is not valid: {error}") from None
    if args.format == "json":
        facts = {"subject": found.subject, "version": found.version, "id": found.schema_id}
        print_json({"format": 1, "registered": True, **facts})
    else:
        print(f"subject {found.subject} version {found.version} has this schema; its id is {found.schema_id}")
    return EXIT_OK


def _not_registered(args: argparse.Namespace) -> int:
    if args.format == "json":
        print_json({"format": 1, "registered": False, "subject": args.subject, "version": None, "id": None})
    else:
        print(f"subject {args.subject} has no version with this schema; headrace schema register registers it")
    return EXIT_FINDINGS


def _schema_text(file: str) -> str:
    try:
        if file == "-":
            content = sys.stdin.buffer.read(SCHEMA_BYTES_MAX)
        else:
            with Path(file).open("rb") as opened:
                content = opened.read(SCHEMA_BYTES_MAX)
        return content.decode("utf-8")
    except OSError as error:
        raise CommandError(os_error_message(error)) from None
    except UnicodeDecodeError:
        raise CommandError(f"the schema in {file} is not UTF-8; convert it") from None


def _reference(text: str) -> SchemaReference:
    from headrace.registry.domain import SchemaReference

    name, _, target = text.partition("=")
    subject, _, version = target.rpartition(":")
    if not name or not subject or not (version.isascii() and version.isdigit() and len(version) <= 10):
        raise CommandError(f"the reference {text!r} is not valid; expected NAME=SUBJECT:VERSION")
    return SchemaReference(name, subject, int(version))


def show_or_set_level(args: argparse.Namespace) -> int:
    from headrace.registry.errors import SubjectLevelNotConfigured

    _reject_value_as_subject(args, LEVELS)
    scope = _scope(args.subject)
    with _client(args) as client:
        before = _own(
            lambda: client.config(scope, inherited=False).get("compatibilityLevel"), SubjectLevelNotConfigured
        )
        if args.unset:
            client.set_config({"compatibility": None}, scope)
        elif args.value:
            client.set_compatibility(args.value, scope)
        own = _own(lambda: client.config(scope, inherited=False).get("compatibilityLevel"), SubjectLevelNotConfigured)
        _print_setting(args, "level", before, own, client.compatibility(scope))
    return EXIT_OK


def show_or_set_mode(args: argparse.Namespace) -> int:
    from headrace.registry.errors import SubjectModeNotConfigured, SubjectNotFound

    _reject_value_as_subject(args, MODES)
    scope = _scope(args.subject)
    if args.value == "IMPORT" and not args.force:
        _confirm(args, f"IMPORT permanently deletes the soft-deleted versions of {args.subject}; --force deletes none.")
    with _client(args) as client:
        before = _own(lambda: client.mode(scope, inherited=False), SubjectModeNotConfigured)
        if args.unset:
            with suppress(SubjectNotFound):  # it has none
                client.delete_mode(scope)
        elif args.value:
            client.set_mode(args.value, scope, force=args.force)
        own = _own(lambda: client.mode(scope, inherited=False), SubjectModeNotConfigured)
        _print_setting(args, "mode", before, own, client.mode(scope))
    return EXIT_OK


def _reject_value_as_subject(args: argparse.Namespace, values: Sequence[str]) -> None:
    """Rejects a value as the only word: it would be taken for a subject."""
    if args.value is None and args.subject.upper() in values:
        raise CommandError(
            f"{args.subject} needs a subject before it; {DEFAULT_SCOPE} is the default context, and "
            f"{DEFAULT_SCOPE}{args.subject} a subject of this name"
        )
    if args.value is not None and args.unset:
        raise CommandError(f"{args.value} and --unset contradict each other")


def _scope(subject: str) -> str | None:
    return None if subject == DEFAULT_SCOPE else subject


def _own(read: Any, missing: type[RegistryError]) -> str | None:
    try:
        found = read()
    except missing:
        return None
    return None if found is None else str(found)


def _print_setting(args: argparse.Namespace, name: str, before: str | None, own: str | None, effective: str) -> None:
    """Prints a level or mode.

    Args:
        name: `level` or `mode`.
        before: the value of the scope itself before the command; None is no value.
        own: the value of the scope itself after the command.
        effective: the value that applies after the command.
    """
    inherited = own is None and args.subject != DEFAULT_SCOPE
    if args.format == "json":
        print_json({"format": 1, "subject": args.subject, name: effective, "inherited": inherited, "before": before})
        return
    changed = f" (was {before or 'inherited'})" if before != own else ""
    shown = "default context" if args.subject == DEFAULT_SCOPE else args.subject
    print(f"{shown}: {effective}{', inherited' if inherited else ''}{changed}")


def delete_versions(args: argparse.Namespace) -> int:
    version = None if args.version is None else _version(args.version)
    with _client(args) as client:
        if args.permanent:
            _confirm(args, _permanent_warning(client, args.subject, version))
        if version is None:
            deleted = client.delete_subject(args.subject, permanent=args.permanent)
        else:
            deleted = [client.delete_version(args.subject, version, permanent=args.permanent)]
    if args.format == "json":
        print_json({"format": 1, "subject": args.subject, "versions": deleted, "permanent": args.permanent})
        return EXIT_OK
    how = "permanently deleted" if args.permanent else "soft-deleted; register the schema again to restore a version"
    print(f"{args.subject}: {_version_list(deleted)} {how}")
    return EXIT_OK


def _permanent_warning(client: RegistryClient, subject: str, version: int | Literal["latest"] | None) -> str:
    numbers = [version] if version is not None else client.versions(subject, deleted=True)
    return (
        f"{subject}: {_version_list(numbers)} will be removed for ever; messages with a schema id that no other "
        "version has can then no longer be read."
    )


def _version_list(numbers: Sequence[int | str]) -> str:
    return f"version{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"


def _confirm(args: argparse.Namespace, warning: str) -> None:
    """Asks on a terminal whether to continue.

    Raises:
        CommandError: the answer is not yes, or there is no terminal and no --yes.
    """
    if args.yes:
        return
    if not sys.stdin.isatty():
        raise CommandError(f"{warning} Confirm with --yes")
    print(warning, file=sys.stderr)
    print("Continue? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("nothing was changed")


def show_history(args: argparse.Namespace) -> int:
    from headrace.registry.errors import InvalidSubject
    from headrace.registry.operation.audit_log import STANDARD_ERROR, read_history

    target = audit_log_target(settings_from(args))
    if target in ("", STANDARD_ERROR):
        where = "turned off" if not target else "written to standard error; search the registry's log"
        raise CommandError(f"the audit log is {where} (registry.audit_log)")
    try:
        found = list(read_history(Path(target), args.subject))
    except InvalidSubject:
        raise CommandError(f"the subject {args.subject!r} is not valid; expected a name, or :.context:name") from None
    except OSError as error:
        raise CommandError(os_error_message(error)) from None
    if not Path(target).exists():
        raise CommandError(
            f"the audit log {target} does not exist; run the command on the registry's host, with its settings"
        )
    if args.format == "json":
        print_json({"format": 1, "file": target, "changes": found})
    elif found:
        rows = _newest_first([_history_row(entry, args.subject) for entry in found])
        totals = f"{args.subject}: {count_text(len(rows), 'change')}"
        header = ("TIME", "USER", "CLIENT", "CHANGE")
        print_report(TextReport(totals, "change", header, rows, is_listing=True, fixed=(0,)), shows_all=args.all)
    else:
        print(f"{target} has no change of {args.subject}")
    return EXIT_OK


def _newest_first(cells: Sequence[tuple[str, ...]]) -> tuple[ReportRow, ...]:
    return tuple(ReportRow(one) for one in reversed(cells))


def _history_row(entry: Mapping[str, Any], subject: str) -> tuple[str, str, str, str]:
    action = str(entry.get("action", "")).replace("_", " ")
    facts = [action if entry.get("subject") == subject else f"{action} of {entry.get('subject')}"]
    if "versions" in entry:
        facts.append(f"{_version_list(entry['versions'])} (ids {', '.join(map(str, entry.get('schema_ids', ())))})")
    elif "version" in entry:
        facts.append(f"version {entry['version']} (id {entry.get('schema_id')})")
    before, after = entry.get("before"), entry.get("after")
    if isinstance(before, Mapping):
        later = after if isinstance(after, Mapping) else {}
        facts += [f"{key} {_value(before.get(key))} → {_value(later.get(key))}" for key in before]
    elif "before" in entry:
        facts.append(f"{_value(before)} → {_value(after)}")
    facts += [flag for flag in ("permanent", "forced", "recursive") if entry.get(flag)]
    if entry.get("versions_removed"):
        facts.append(f"{entry['versions_removed']} soft-deleted versions removed")
    client = " via ".join(str(entry[key]) for key in ("forwarded_for", "client") if entry.get(key))
    return (
        f"{str(entry.get('time', ''))[:19].replace('T', ' ')}Z",
        str(entry.get("user") or "-"),
        client,
        ", ".join(facts),
    )


def _value(value: Any) -> str:
    return "unset" if value is None else str(value)
