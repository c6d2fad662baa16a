"""Converts settings and command-line flags to the values of a check."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.compat import CompatError, InvalidLevel, parse_level
from headrace.compat.baseline_file import parse_baseline
from headrace.compat.checking.baselines.base import Baseline, LevelChoice
from headrace.compat.checking.baselines.directory import DirectoryBaseline
from headrace.compat.checking.baselines.files import FilesBaseline
from headrace.compat.checking.baselines.git import GitBaseline
from headrace.compat.checking.run import Exemptions
from headrace.compat.checking.sources import Sources, only_changed, read_sources
from headrace.compat.errors import NoSubject
from headrace.compat.subjects import STRATEGIES, SubjectNaming, SubjectRule
from headrace.compat.suppressions import parse_suppression
from headrace.settings import CompatSettings, Settings, SettingsError

if TYPE_CHECKING:
    from headrace.compat.checking.baselines.registry import AllNewPolicy
    from headrace.compat.lints import EnabledLint
    from headrace.registry.client import RegistryClient

GIT_PREFIX = "git:"
GIT_TIP_PREFIX = "git-tip:"
REGISTRY = "registry"
URL_BEGINNINGS = ("http://", "https://")
SETTINGS_ORIGIN = "the settings (compat.suppressions)"


def add_source_flags(parser: argparse.ArgumentParser) -> None:
    """Adds to a command's parser the arguments and flags that select schemas and name their subjects."""
    parser.add_argument(
        "schemas",
        nargs="*",
        metavar="SCHEMA",
        help="schema file, pattern in quotes ('schemas/**/*.avsc'), directory, or - for standard input; default: "
        "compat.schemas of the settings. Files may use each other's types in any order",
    )
    group = parser.add_argument_group("what is checked")
    group.add_argument(
        "--since",
        metavar="REF",
        help="only files changed since the merge base with REF, and files that use types of changed files (also of "
        "files that are not selected)",
    )
    group.add_argument(
        "--types",
        nargs="+",
        action="extend",
        metavar="PATH",
        help="files and directories of types that schemas may use",
    )
    group.add_argument(
        "--allow-comments", action="store_true", help="ignore comments in schema files, as only Avro Java does"
    )
    group.add_argument(
        "--stdin-name",
        default="",
        metavar="FILE",
        help="path of the schema that standard input contains; determines its subject and earlier version",
    )
    group = parser.add_argument_group("subjects")
    group.add_argument(
        "--subject-strategy",
        choices=sorted(STRATEGIES),
        help="; ".join(f"{strategy.name}: {strategy.purpose}" for strategy in STRATEGIES.values())
        + " (default: topic)",
    )
    group.add_argument(
        "--subject",
        action="append",
        default=[],
        metavar="[PATTERN=]SUBJECT",
        help="subject of files that match PATTERN; overrides the strategy; may contain {topic} {kind} {stem} "
        "{directory} {record} {name} {namespace}; may be repeated",
    )


def load_sources(args: argparse.Namespace, settings: CompatSettings) -> Sources:
    """Reads the schemas that the arguments of a command, or else the settings, select.

    Raises:
        SettingsError: no schemas are selected, or standard input is selected twice.
        BaselineFailed: the changes of `--since` cannot be read.
    """
    schemas = args.schemas or settings.schemas
    if not schemas:
        raise SettingsError("no schemas selected; name files or directories, or set compat.schemas in headrace.toml")
    if args.schemas.count("-") > 1:
        raise SettingsError("standard input (-) can be read only once")
    types = args.types or settings.types
    comments = args.allow_comments or settings.allow_comments
    sources = read_sources(schemas, stdin_name=args.stdin_name, type_files=types, comments=comments)
    return only_changed(sources, args.since, comments=comments) if args.since else sources


def parse_naming(args: argparse.Namespace, settings: CompatSettings) -> SubjectNaming:
    """Returns the strategy and the rules that derive the subjects of files. Rules of the command line precede rules of
    the settings."""
    rules = []
    try:
        for text in args.subject:
            pattern, equals, subject = text.partition("=")
            rules.append(SubjectRule(pattern, subject) if equals else SubjectRule("*", text))
        rules += [SubjectRule(pattern, subject) for pattern, subject in settings.subjects.items()]
    except NoSubject as error:
        raise SettingsError(f"--subject: {error}") from None
    return SubjectNaming(args.subject_strategy or settings.subject_strategy, tuple(rules))


def parse_level_choice(args: argparse.Namespace, settings: CompatSettings) -> LevelChoice:
    """Returns the level that the flags, or else the settings, request."""
    text, origin = (args.level, "--level") if args.level else (settings.level, "compat.level")
    try:
        level = parse_level(text) if text else None
    except InvalidLevel as error:
        raise SettingsError(f"{origin}: {error}") from error
    return LevelChoice(level, args.all_versions or settings.all_versions)


def open_baseline(args: argparse.Namespace, settings: Settings) -> Baseline:
    """Returns the baseline (the source of earlier versions) that the flags name, or else the settings."""
    given = [name for name in ("against", "against_registry", "against_db") if getattr(args, name) is not None]
    if len(given) > 1:
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise SettingsError(f"{flags}: expected only one baseline")
    if args.against_registry is not None:
        return _registry(settings, args.against_registry, args)
    if args.against_db is not None:
        return _database(settings, args.against_db, args)
    against = args.against or settings.compat.against
    if not against:
        raise SettingsError(
            "no baseline to compare with; give --against git:REF, a directory or files, or --against-registry URL, "
            "or set compat.against in headrace.toml"
        )
    return _open_against(against, settings, args)


def _open_against(against: Sequence[str], settings: Settings, args: argparse.Namespace) -> Baseline:
    naming, comments = parse_naming(args, settings.compat), args.allow_comments or settings.compat.allow_comments
    prefixes = (GIT_PREFIX, GIT_TIP_PREFIX, *URL_BEGINNINGS)
    special = [value for value in against if value.startswith(prefixes) or value == REGISTRY]
    if special and len(against) > 1:
        raise SettingsError(f"--against: {special[0]} must be the only value; only files can be combined, oldest first")
    value = against[0]
    if value.startswith((GIT_PREFIX, GIT_TIP_PREFIX)):
        kind, _, rest = value.partition(":")
        revision, _, path = rest.partition(":")
        return GitBaseline(
            revision,
            path,
            naming=naming,
            tip=f"{kind}:" == GIT_TIP_PREFIX,
            comments=comments,
            schemas=args.schemas or settings.compat.schemas,
            types=args.types or settings.compat.types,
        )
    if special:
        return _registry(settings, "" if value == REGISTRY else value, args)
    if len(against) == 1 and value and "\x00" not in value and Path(value).is_dir():
        return DirectoryBaseline(value, naming, comments=comments)
    return FilesBaseline(against, comments=comments)


def _registry(settings: Settings, url: str, args: argparse.Namespace) -> Baseline:
    from headrace.compat.checking.baselines.registry import RegistryBaseline

    is_from_working_directory = (
        args.against_registry is None and not args.against and "compat.against" in settings.keys_from_working_directory
    )
    return RegistryBaseline(
        open_client(settings, url, is_from_working_directory=is_from_working_directory),
        all_new_policy=_all_new_policy(args),
    )


def _database(settings: Settings, url: str, args: argparse.Namespace) -> Baseline:
    from headrace.compat.checking.baselines.database import DatabaseBaseline

    return DatabaseBaseline(settings, url, _all_new_policy(args))


def _all_new_policy(args: argparse.Namespace) -> AllNewPolicy:
    """Returns whether the check may continue if the registry has none of the subjects of the checked files. For a few
    files this is plausible; for a whole tree it suggests a wrong naming strategy. The flag `--all-new` always allows
    it."""
    from headrace.compat.checking.baselines.registry import AllNewPolicy

    if args.all_new:
        return AllNewPolicy.ALLOW
    return AllNewPolicy.REFUSE_IF_MISNAMED if _is_partial(args) else AllNewPolicy.REFUSE


def _is_partial(args: argparse.Namespace) -> bool:
    """Whether the command line selects only some of the schemas: files, standard input, or changed files with
    `--since`."""
    return bool(args.since) or any(Path(argument).is_file() or argument == "-" for argument in args.schemas)


def open_client(settings: Settings, url: str, *, is_from_working_directory: bool = False) -> RegistryClient:
    """Returns a client of the registry at a URL, with the credentials of the settings.

    Args:
        url: "" for the URL of the settings.
        is_from_working_directory: the URL comes from settings in the working directory, not from the user.

    Raises:
        SettingsError: the URL, the credentials or the certificates cannot be used.
    """
    from headrace.registry.client.of_settings import registry_client
    from headrace.registry.errors import RegistryError

    if url:
        registry = replace(settings.registry, url=url)
        of_directory = settings.keys_from_working_directory - {"registry.url"} | (
            {"registry.url"} if is_from_working_directory else set()
        )
        settings = replace(settings, registry=registry, keys_from_working_directory=of_directory)
    try:
        return registry_client(settings)
    except RegistryError as error:
        raise SettingsError(str(error)) from None


def parse_lint_options(args: argparse.Namespace, settings: CompatSettings) -> tuple[EnabledLint, ...]:
    """Returns the lints to run: the lints that the settings and the command line enable, and the lints that run by
    default. The command line overrides the settings."""
    words = [*settings.lints, *(word for text in args.lint for word in text.split(","))]
    from headrace.compat.lints import DEFAULT_LINTS, parse_lints

    try:
        return parse_lints(words, DEFAULT_LINTS)
    except CompatError as error:
        raise SettingsError(f"--lint: {error}") from None


def parse_exemptions(args: argparse.Namespace, settings: CompatSettings) -> Exemptions:
    """Returns the problems that do not fail the check: the suppressions of the settings, and the known problems of the
    baseline file. With `--write-baseline`, the known problems are omitted."""
    suppressions = []
    for number, table in enumerate(settings.suppressions, 1):
        try:
            suppressions.append(parse_suppression(table))
        except CompatError as error:
            raise SettingsError(f"suppression {number} of compat.suppressions: {error}") from None
    path = args.baseline or settings.baseline
    exemptions = Exemptions(tuple(suppressions), SETTINGS_ORIGIN, is_partial=_is_partial(args))
    if not path or args.write_baseline:
        return exemptions
    try:
        known = parse_baseline(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(
            f"the baseline file {path} cannot be read: {error.strerror}; create it with --write-baseline {path}"
        ) from None
    except (UnicodeDecodeError, CompatError) as error:
        raise SettingsError(
            f"the baseline file {path} cannot be used: {error}; recreate it with --write-baseline {path}"
        ) from None
    return replace(exemptions, known=known, baseline_file=path)
