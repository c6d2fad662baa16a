"""Runs a check: compares every candidate (a new schema) with its earlier versions and returns the result.

Also reports deleted schemas (`SCHEMA_DELETED`). A schema is deleted if the baseline, or the revision of `--since`, has
a file that the command line selects and the working tree lacks, and no other file replaces it. With a registry, any
file with the same subject replaces it. With a baseline of files, an existing file replaces it only if the deleted file
is the earlier version of the existing file. An equal subject does not suffice, because both files may have existed
before.
"""

from __future__ import annotations

import datetime
import gc
import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from headrace.avro_schema import Schema, SchemaParseError, self_contained_text
from headrace.compat import LEVELS, CompatError, VersionedSchema, check_level
from headrace.compat.baseline_file import KnownProblem, mark_known
from headrace.compat.check_result import (
    CheckedSchema,
    ComparedVersion,
    CompatCheckResult,
    Failure,
    FailureKind,
    Problem,
    add_fingerprints,
)
from headrace.compat.checking.baselines.base import (
    Baseline,
    BaselineFailed,
    CandidateSchema,
    EarlierVersion,
    LevelChoice,
    VersionHistory,
)
from headrace.compat.checking.inputs import SchemaFile
from headrace.compat.checking.scope import FileScope
from headrace.compat.checking.sources import Sources
from headrace.compat.checking.type_sets import TypeSet, compact_text, root_type_name
from headrace.compat.errors import NoSubject
from headrace.compat.finding import SCHEMA_DELETED, Severity
from headrace.compat.report import to_checked_schema
from headrace.compat.subject_policy import find_policy_problems
from headrace.compat.subjects import SubjectNaming, SubjectSource
from headrace.compat.suppressions import Suppression, apply_suppressions
from headrace.version import VERSION

if TYPE_CHECKING:
    from headrace.compat.lints import EnabledLint

ITEMS_PER_PROCESS_MIN = 25
"""Minimum number of items for each process. Starting another process takes 10 ms, in which the first one checks fewer
items than this."""

PROCESSES_MAX = 16

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Exemptions:
    """Findings that are suppressed, so that they do not fail a check.

    `known` are the findings listed in `baseline_file`. `is_partial`: only some schemas are checked, so unused
    suppressions are not reported, because they may be for other schemas.
    """

    suppressions: tuple[Suppression, ...] = ()
    suppressions_origin: str = ""
    known: tuple[KnownProblem, ...] = ()
    baseline_file: str = ""
    is_partial: bool = False


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """Options of a check.

    `require_subject`: a schema without an earlier version fails. `skip_invalid`: an invalid earlier version is skipped
    with a note instead of failing the check. `deleted`: report deleted schemas. `processes`: None for the number of
    cores.
    """

    require_subject: bool = False
    skip_invalid: bool = False
    processes: int | None = None
    lints: tuple[EnabledLint, ...] = ()
    deleted: bool = False


def list_candidates(sources: Sources, naming: SubjectNaming) -> tuple[list[CandidateSchema], list[Failure]]:
    """Returns the schemas to check with their subjects, and the failures of schemas that are invalid or for which no
    subject can be derived. Other invalid schemas are returned like valid ones.

    Args:
        sources: the schema files.
        naming: derives the subject of each file.
    """
    candidates: list[CandidateSchema] = []
    failures: list[Failure] = []
    for file in sources.files:
        text = sources.texts[file.path]
        source = SubjectSource(file.path, root_type_name(text) if naming.needs_record else "")
        try:
            candidates.append(CandidateSchema(file, naming.derive_subject(source), text))
        except NoSubject as error:
            # An invalid schema has no name either; report that it is invalid.
            invalid = find_invalid(sources.types, file.path)
            failures.append(invalid or Failure(FailureKind.UNREADABLE, file.path, str(error)))
    return candidates, failures


def find_invalid(types: TypeSet, path: str) -> Failure | None:
    """Returns a failure if the schema at a path is invalid, None if it is valid.

    Args:
        types: the text at this path, and the texts with types that it may use.
    """
    try:
        types.schema(path)
    except SchemaParseError as error:
        return Failure.invalid(path, error)
    return None


def check(
    sources: Sources,
    naming: SubjectNaming,
    baseline: Baseline,
    choice: LevelChoice,
    options: CheckOptions = CheckOptions(),
) -> CompatCheckResult:
    """Compares every schema with its earlier versions. Returns the results, and the failures of schemas that could not
    be checked; a failure does not end the check of the rest. If the earlier versions cannot be read, there are only
    failures.

    Args:
        sources: the schemas to check.
        naming: derives the subject of each file.
        baseline: the source of the earlier versions.
        choice: the level that the user requested.
        options: the lints to run, and the treatment of new, invalid and deleted schemas.
    """
    candidates, failures = list_candidates(sources, naming)
    failures = [*sources.failures, *failures]
    try:
        histories = baseline.histories(candidates, choice) if candidates else []
        missing = _missing_files(sources, baseline) if options.deleted else ()
        deleted = _check_deletions(missing, sources, naming, baseline, choice, histories)
    except BaselineFailed as error:
        broken = [
            failure for item in candidates if (failure := find_invalid(sources.types, item.file.path)) is not None
        ]
        return CompatCheckResult((), (*failures, *error.failures, *broken), tool_version=VERSION)
    lost = sources.scope.lost_arguments((item.file for item in failures), (path for path, _ in missing))
    failures = [item for item in failures if item.file not in lost]
    checker = SchemaChecker(sources.types, baseline.name, choice, options)
    with _gc_paused():
        results = run_in_processes(
            partial(_check_candidate, checker), list(zip(candidates, histories, strict=True)), options.processes
        )
    try:
        results = [
            _accept_registered(item, result, sources, baseline)
            for item, result in zip(candidates, results, strict=True)
        ]
    except BaselineFailed as error:
        failures += error.failures
    checked = tuple(result for result in results if isinstance(result, CheckedSchema))
    failed = [result for result in results if isinstance(result, Failure)]
    return CompatCheckResult((*checked, *deleted), (*failures, *failed), tool_version=VERSION)


def _accept_registered(
    candidate: CandidateSchema, result: CheckedSchema | Failure, sources: Sources, baseline: Baseline
) -> CheckedSchema | Failure:
    """Returns the result of a candidate. If the candidate is incompatible, but the registry already has it as a
    version, it is accepted: only the findings of lints remain.

    Args:
        result: the result of comparing the candidate with its earlier versions.
        sources: the checked schemas.
        baseline: finds the equal version.

    Raises:
        BaselineFailed: the baseline cannot be read.
    """
    if isinstance(result, Failure) or result.is_compatible:
        return result
    path = candidate.file.path
    is_self_contained = sources.types.is_self_contained(path)
    label = baseline.find_equal_version(
        candidate, candidate.text if is_self_contained else self_contained_text(sources.types.schema(path))
    )
    if not label:
        return result
    note = f"already registered as {label}, so nothing would be registered; incompatible with later versions"
    from headrace.compat.lints import LINTS

    lint_findings = tuple(problem for problem in result.problems if problem.rule in LINTS)
    return replace(result, problems=lint_findings, notes=(*result.notes, note))


def _missing_files(sources: Sources, baseline: Baseline) -> Sequence[tuple[str, str]]:
    """Returns path and text of the files that the command line selects and the working tree lacks, but the baseline or
    the revision of `--since` has.

    Raises:
        BaselineFailed: the baseline cannot be read.
    """
    return baseline.deleted_files(sources.scope) if sources.deleted_files is None else sources.deleted_files


def _check_deletions(
    missing: Sequence[tuple[str, str]],
    sources: Sources,
    naming: SubjectNaming,
    baseline: Baseline,
    choice: LevelChoice,
    histories: Sequence[VersionHistory],
) -> list[CheckedSchema]:
    """Returns the schemas that exist in the baseline, or in the revision of `--since`, but were deleted from the
    working tree, each with a `SCHEMA_DELETED` problem.

    Args:
        missing: path and text of the deleted files.
        sources: the checked schemas, and the selection of the command line.
        naming: derives the subject of each deleted file.
        choice: the level that the user requested.
        histories: the earlier versions of all checked schemas. A deleted file is not reported if a checked file has the
            same latest version.

    Raises:
        BaselineFailed: the baseline cannot be read.
    """
    if not missing:
        return []
    deleted = deleted_candidates(missing, sources.scope, naming)
    subjects = {item.subject for item in deleted}
    all_sources = replace(sources, files=tuple(SchemaFile(path, sources.scope.key(path)) for path in sources.texts))
    # With --since, unchanged files have no history yet, but one of them may replace the deleted file.
    replacements = [item for item in list_candidates(all_sources, naming)[0] if item.subject in subjects]
    found = baseline.histories([*deleted, *replacements], choice) if deleted else []
    return report_deletions(deleted, found[: len(deleted)], [*histories, *found[len(deleted) :]], baseline.name, choice)


@contextmanager
def _gc_paused() -> Iterator[None]:
    """Disables Python's garbage collector while the context is open. It would search all schemas, which takes a fifth
    of the run time, and find nothing to free, because schemas have no reference cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _check_candidate(checker: SchemaChecker, item: tuple[CandidateSchema, VersionHistory]) -> CheckedSchema | Failure:
    result = checker.check(*item)
    checker.types.release(item[0].file.path)
    return result


@dataclass(frozen=True, slots=True)
class SchemaChecker:
    """Checks single candidates (new schemas); holds the values that all schemas of a run share."""

    types: TypeSet
    baseline: str
    choice: LevelChoice
    options: CheckOptions = CheckOptions()

    def check(self, candidate: CandidateSchema, history: VersionHistory) -> CheckedSchema | Failure:
        """Compares a candidate with the earlier versions in its history; returns the result, or the failure if it
        cannot be compared or lacks a required earlier version."""
        path = candidate.file.path
        try:
            candidate_schema = self.types.schema(path)
        except SchemaParseError as error:
            return Failure.invalid(path, error)
        try:
            versions, notes = self._versions(candidate, candidate_schema, history)
        except SchemaParseError as error:
            message = (
                f"{error.message}; {path} cannot be compared with this version; --skip-invalid skips invalid versions"
            )
            return Failure(FailureKind.INVALID, error.source or path, message, error.position)
        level = self.choice.effective(history.level)
        compares = bool(LEVELS[level].directions)
        if self.options.require_subject and not (versions if compares else history.versions):
            message = f"{self.baseline} has no earlier version of {candidate.subject}, which --require-subject requires"
            return Failure(FailureKind.NOT_REGISTERED, path, message)
        try:
            report = check_level(candidate_schema, versions, level, every_version=True)
        except CompatError as error:
            return Failure(FailureKind.INCOMPARABLE, path, str(error))
        origin = "as requested" if self.choice.level else history.level_origin or "the default"
        checked = to_checked_schema(
            report,
            subject=candidate.subject,
            baseline=self.baseline,
            level_origin=origin,
            version_count=history.version_count,
        )
        policy_problems = find_policy_problems(history.policy, report, candidate.subject)
        problems = (*checked.problems, *policy_problems, *self._lint(candidate_schema, versions, candidate.subject))
        notes = [*history.notes, *notes]
        return add_fingerprints(replace(checked, problems=problems, is_new=not history.versions, notes=tuple(notes)))

    def _lint(self, candidate_schema: Schema, versions: Sequence[VersionedSchema], subject: str) -> tuple[Problem, ...]:
        """Returns the problems that the enabled lints find in a candidate, given its earlier versions (ascending) and
        its subject."""
        if not self.options.lints:
            return ()
        from headrace.compat.lints import LintInput, lint_problems

        return lint_problems(self.options.lints, LintInput(candidate_schema, tuple(reversed(versions)), subject))

    def _versions(
        self, candidate: CandidateSchema, candidate_schema: Schema, history: VersionHistory
    ) -> tuple[list[VersionedSchema], list[str]]:
        """Returns the earlier versions that the level or an explicitly enabled lint compares, and notes (sentences for
        the user). A version with the same text as the candidate is not parsed; it gets the candidate's schema object.

        Args:
            candidate: the new schema as text.
            candidate_schema: the parsed text of the candidate.
            history: all earlier versions that the baseline returned.

        Raises:
            SchemaParseError: a version is invalid, and invalid versions are not skipped.
        """
        transitive = self.choice.is_transitive(history.level)
        rule = LEVELS[self.choice.effective(history.level)]
        compared = history.versions if transitive else history.versions[-1:]
        if not rule.directions and not any(lint.is_explicit for lint in self.options.lints):
            compared = ()
        same_text = self._comparable_text(candidate)
        versions, notes = [], []
        for earlier in compared:
            try:
                schema = candidate_schema if same_text(earlier) else earlier.parse()
            except SchemaParseError as error:
                if not self.options.skip_invalid:
                    raise
                notes.append(f"{earlier.label} is not a valid schema and was skipped: {error}")
            else:
                versions.append(VersionedSchema(earlier.version, schema, earlier.label))
        return versions, notes

    def _comparable_text(self, candidate: CandidateSchema) -> Callable[[EarlierVersion], bool]:
        """Returns a function that tests whether an earlier version has the candidate's text, apart from white space. It
        always returns false if the candidate uses types of other files, since the same text may then have another
        meaning."""
        if not self.types.is_self_contained(candidate.file.path):
            return lambda _: False
        dense, compact = "".join(candidate.text.split()), None

        def is_same(earlier: EarlierVersion) -> bool:
            nonlocal compact
            if earlier.text == candidate.text:
                return True
            if "".join(earlier.text.split()) != dense:  # fast path: rejects nearly all different texts
                return False
            compact = compact or compact_text(candidate.text)
            return compact_text(earlier.text) == compact

        return is_same


def apply_exemptions(result: CompatCheckResult, exemptions: Exemptions, today: datetime.date) -> CompatCheckResult:
    """Returns the result of a run with suppressed and known problems marked, and with notes (sentences for the user)
    about unused exemptions.

    Args:
        today: the date on which it is decided whether a suppression has expired.
    """
    checked, notes = apply_suppressions(
        result.checked, exemptions.suppressions, today, exemptions.suppressions_origin, is_partial=exemptions.is_partial
    )
    if exemptions.known:
        checked, known_notes = mark_known(checked, exemptions.known, exemptions.baseline_file, os.path.lexists)
        notes = (*notes, *known_notes)
    return replace(result, checked=checked, notes=(*result.notes, *notes))


def deleted_candidates(
    deleted_files: Iterable[tuple[str, str]], scope: FileScope, naming: SubjectNaming
) -> list[CandidateSchema]:
    """Returns the deleted files with their subjects, as candidates, so that a baseline can find their earlier versions.
    Files for which no subject can be derived are omitted.

    Args:
        deleted_files: path and text of each file.
        scope: the selection of the command line, which determines the path that a baseline directory has for each file.
        naming: derives the subject of each file.
    """
    candidates = []
    for path, text in deleted_files:
        with suppress(NoSubject):
            subject = naming.derive_subject(SubjectSource(path, root_type_name(text) if naming.needs_record else ""))
            candidates.append(CandidateSchema(SchemaFile(path, scope.key(path)), subject, text))
    return candidates


def report_deletions(
    deleted: Sequence[CandidateSchema],
    histories: Sequence[VersionHistory],
    others: Sequence[VersionHistory],
    baseline: str,
    choice: LevelChoice,
) -> list[CheckedSchema]:
    """Returns a `SCHEMA_DELETED` problem for each deleted file that no other file replaces. Deleted files with the same
    latest version are reported once.

    Args:
        deleted: the deleted files.
        histories: histories of the deleted files; a file without versions was never released.
        others: histories of existing files. An existing file replaces a deleted file with the same latest version.
        baseline: name of the baseline, for messages.
        choice: the level that the user requested; at a level without checks nothing is reported.
    """
    existing_labels = {history.versions[-1].label for history in others if history.versions}
    found: dict[str, CheckedSchema] = {}
    for candidate, history in zip(deleted, histories, strict=True):
        level = choice.effective(history.level)
        if history.versions and history.versions[-1].label not in existing_labels and LEVELS[level].directions:
            latest = history.versions[-1]
            origin = "as requested" if choice.level else history.level_origin or "the default"
            compared = (ComparedVersion(latest.version, latest.label),)
            fields = (candidate.file.path, candidate.subject, baseline, level, origin, compared, history.version_count)
            found.setdefault(latest.label, CheckedSchema(*fields, (_deletion(candidate.subject, latest),)))
    return [add_fingerprints(checked) for checked in found.values()]


def _deletion(subject: str, latest: EarlierVersion) -> Problem:
    return Problem(
        rule=SCHEMA_DELETED,
        severity=Severity.ERROR,
        direction=None,
        version=latest.version,
        version_name=latest.label,
        pointer="",
        line=0,
        column=0,
        sentence=f"the schema was deleted, and no file replaces {latest.label} (subject {subject})",
        fix="restore the file; if its data is no longer read or written, add an entry to compat.suppressions with rule "
        f"{SCHEMA_DELETED}, this path and a reason",
    )


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_in_processes(
    function: Callable[[Item], Result], items: Sequence[Item], processes: int | None = None
) -> list[Result]:
    """Calls a function with every item, in several processes if there are many items. Returns the results in the order
    of the items; they must be picklable.

    Processes are forked, so that they share everything read before and only results are transferred. If a process ends
    without results (killed, out of memory), the calling process handles its items itself and reports their errors.

    Args:
        processes: maximum number of processes; None for the number of cores. There are never more than `PROCESSES_MAX`.
    """
    count = min(processes or usable_cores(), PROCESSES_MAX, max(1, len(items) // ITEMS_PER_PROCESS_MIN))
    if count < 2 or not hasattr(os, "fork"):
        return [function(item) for item in items]
    children = [_fork_worker(function, items[offset::count]) for offset in range(1, count)]
    found: list[list[Result]] = [[function(item) for item in items[::count]]]
    for offset, (process, stream) in enumerate(children, 1):
        with stream:
            data = stream.read()
        _, status = os.waitpid(process, 0)
        # A killed process may have written a partial result.
        part = pickle.loads(data) if status == 0 else [function(item) for item in items[offset::count]]  # noqa: S301 - our own child's
        found.append(part)
    return [found[index % count][index // count] for index in range(len(items))]


def _fork_worker(function: Callable[[Item], Result], items: Sequence[Item]) -> tuple[int, BinaryIO]:
    """Forks a process that applies the function to the items; returns its process id and the stream to which it writes
    the results."""
    readable, writable = os.pipe()
    process = os.fork()
    if process:
        os.close(writable)
        return process, os.fdopen(readable, "rb")
    code = 1
    try:
        os.close(readable)
        data = pickle.dumps([function(item) for item in items], pickle.HIGHEST_PROTOCOL)
        with os.fdopen(writable, "wb") as stream:
            stream.write(data)
        code = 0
    finally:
        # Skip the interpreter's exit handlers: buffers and handlers belong to the parent.
        os._exit(code)
