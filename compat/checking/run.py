"""A whole check: a plan, then its outcome. What each step decides is a value that the next one takes."""

from __future__ import annotations

import datetime
import gc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from headrace.avro_schema import Schema, SchemaParseError, self_contained_text
from headrace.compat import LEVELS, CompatError, VersionedSchema, check_level
from headrace.compat.baseline_file import KnownProblem, leave_out_known
from headrace.compat.checking.baselines.base import Baseline, BaselineFailed, Earlier, History, LevelChoice, Wanted
from headrace.compat.checking.changed import changed_since
from headrace.compat.checking.git import GitFailed
from headrace.compat.checking.gone import deletions, wanted_of_gone
from headrace.compat.checking.inputs import SchemaFile, find_files, plain_path, read_texts
from headrace.compat.checking.processes import answers_of
from headrace.compat.checking.scope import Scope
from headrace.compat.checking.siblings import WorkingDirectory
from headrace.compat.checking.type_sets import TypeSet, plain_text, root_name
from headrace.compat.errors import NoSubject
from headrace.compat.outcome import Checked, Failure, FailureKind, Outcome, Problem, with_fingerprints
from headrace.compat.report import checked_of
from headrace.compat.subjects import Naming, SchemaPlace
from headrace.compat.suppressions import Suppression, suppress
from headrace.compat.terms import problems_of_terms
from headrace.version import VERSION

if TYPE_CHECKING:
    from headrace.compat.lints import ChosenLint


@dataclass(frozen=True, slots=True)
class Leniency:
    """What is found and does not count. `known` are the problems of `baseline_file`; with `is_part` they and the
    suppressions are those of more schemas than are checked."""

    suppressions: tuple[Suppression, ...] = ()
    suppressions_origin: str = ""
    known: tuple[KnownProblem, ...] = ()
    baseline_file: str = ""
    is_part: bool = False


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """`require_subject`: a schema without an earlier version fails. `skip_invalid`: an earlier version that is no valid
    schema is told and left out, instead of failing its successor. `deleted`: schemas that are gone are told of.
    `processes` None: as many as there are cores."""

    require_subject: bool = False
    skip_invalid: bool = False
    processes: int | None = None
    lints: tuple[ChosenLint, ...] = ()
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class Sources:
    """The new schemas: `files` with their `texts` and `types`, and what could not be read. `scope` is what was named;
    `gone` are path and text of what is gone since a revision, None where none was named."""

    files: tuple[SchemaFile, ...]
    texts: Mapping[str, str]
    types: TypeSet
    failures: tuple[Failure, ...]
    scope: Scope
    gone: tuple[tuple[str, str], ...] | None = None


def read_sources(
    arguments: Sequence[str], *, stdin_name: str = "", type_files: Sequence[str] = (), comments: bool = False
) -> Sources:
    """The schemas that arguments name.

    Args:
        type_files: files and directories that may define types which the schemas use, and are not checked themselves.
        comments: comments are read past.
    """
    found = find_files(arguments, stdin_name=stdin_name)
    texts, failures = read_texts(found.files, comments=comments)
    extra = find_files(type_files)
    more, _ = read_texts(extra.files, comments=comments)
    types = TypeSet({**more, **texts}, given_types=frozenset(more), around=WorkingDirectory(comments))
    files = tuple(file for file in found.files if file.path in texts)
    failed = (*found.failures, *failures, *extra.failures)
    return Sources(files, texts, types, failed, Scope(tuple(map(plain_path, arguments))))


def only_changed(sources: Sources, revision: str, *, comments: bool = False) -> Sources:
    """The same with those files only that differ from a revision, and what is gone since.

    Raises:
        BaselineFailed: git cannot tell.
    """
    try:
        changed = changed_since(sources.files, revision, sources.types, sources.scope, comments=comments)
    except GitFailed as error:
        raise BaselineFailed.because(FailureKind.UNREADABLE, f"--since {revision}", str(error)) from None
    return replace(sources, files=changed.files, gone=changed.gone)


def wanted_of(sources: Sources, naming: Naming) -> tuple[list[Wanted], list[Failure]]:
    """The schemas with their subjects, and those whose subject cannot be told."""
    wanted: list[Wanted] = []
    failures: list[Failure] = []
    for file in sources.files:
        text = sources.texts[file.path]
        place = SchemaPlace(file.path, root_name(text) if naming.needs_record else "")
        try:
            wanted.append(Wanted(file, naming.subject_of(place), text))
        except NoSubject as error:
            # What is no schema has no name either; the first is what is told.
            invalid = invalid_of(sources.types, file.path)
            failures.append(invalid or Failure(FailureKind.UNREADABLE, file.path, str(error)))
    return wanted, failures


def invalid_of(types: TypeSet, path: str) -> Failure | None:
    """Why a text is no schema, None where it is one."""
    try:
        types.schema(path)
    except SchemaParseError as error:
        return Failure.invalid(path, error)
    return None


def check(
    sources: Sources,
    naming: Naming,
    baseline: Baseline,
    choice: LevelChoice,
    options: CheckOptions = CheckOptions(),
) -> Outcome:
    """Every schema compared with its baseline; what is wrong with one does not stop the others."""
    wanted, failures = wanted_of(sources, naming)
    failures = [*sources.failures, *failures]
    try:
        histories = baseline.histories(wanted, choice) if wanted else []
        deleted = _deleted(sources, naming, baseline, choice, histories) if options.deleted else []
    except BaselineFailed as error:
        broken = [failure for item in wanted if (failure := invalid_of(sources.types, item.file.path)) is not None]
        return Outcome((), (*failures, *error.failures, *broken), tool_version=VERSION)
    judge = Judge(sources.types, baseline.name, choice, options)
    with _without_collection():
        answers = answers_of(partial(_judge, judge), list(zip(wanted, histories, strict=True)), options.processes)
    try:
        answers = [_unless_there(item, answer, sources, baseline) for item, answer in zip(wanted, answers, strict=True)]
    except BaselineFailed as error:
        failures += error.failures
    checked = tuple(answer for answer in answers if isinstance(answer, Checked))
    failed = [answer for answer in answers if isinstance(answer, Failure)]
    return Outcome((*checked, *deleted), (*failures, *failed), tool_version=VERSION)


def _unless_there(wanted: Wanted, answer: Checked | Failure, sources: Sources, baseline: Baseline) -> Checked | Failure:
    """The answer, where it is no, unless the baseline takes the schema for a version that it has; lints stay.

    Raises:
        BaselineFailed: the baseline cannot tell.
    """
    if isinstance(answer, Failure) or answer.is_compatible:
        return answer
    path = wanted.file.path
    alone = sources.types.stands_alone(path)
    label = baseline.same_as(wanted, wanted.text if alone else self_contained_text(sources.types.schema(path)))
    if not label:
        return answer
    note = f"it is {label} already, so nothing would be registered; later versions do not fit it"
    from headrace.compat.lints import LINTS

    kept = tuple(problem for problem in answer.problems if problem.rule in LINTS)
    return replace(answer, problems=kept, notes=(*answer.notes, note))


def _deleted(
    sources: Sources, naming: Naming, baseline: Baseline, choice: LevelChoice, histories: Sequence[History]
) -> list[Checked]:
    """What is to be said of schemas that are gone.

    Raises:
        BaselineFailed: the baseline cannot tell.
    """
    missing = baseline.gone(sources.scope) if sources.gone is None else sources.gone
    if not missing:
        return []
    gone = wanted_of_gone(missing, sources.scope, naming)
    subjects = {item.subject for item in gone}
    everything = replace(sources, files=tuple(SchemaFile(path, sources.scope.key(path)) for path in sources.texts))
    # Files that have not changed are not among the histories, and may be what is left of the subject.
    rivals = [item for item in wanted_of(everything, naming)[0] if item.subject in subjects]
    found = baseline.histories([*gone, *rivals], choice) if gone else []
    return deletions(gone, found[: len(gone)], [*histories, *found[len(gone) :]], baseline.name, choice)


@contextmanager
def _without_collection() -> Iterator[None]:
    """Schemas are trees without cycles; looking for cycles among them again and again takes a fifth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _judge(judge: Judge, item: tuple[Wanted, History]) -> Checked | Failure:
    answer = judge.answer(*item)
    judge.types.release(item[0].file.path)
    return answer


@dataclass(frozen=True, slots=True)
class Judge:
    """What is the same for every schema of a run."""

    types: TypeSet
    baseline: str
    choice: LevelChoice
    options: CheckOptions = CheckOptions()

    def answer(self, wanted: Wanted, history: History) -> Checked | Failure:
        """One schema against its history."""
        path = wanted.file.path
        try:
            candidate = self.types.schema(path)
        except SchemaParseError as error:
            return Failure.invalid(path, error)
        try:
            versions, notes = self._versions(wanted, candidate, history)
        except SchemaParseError as error:
            message = f"{error.message}; without it nothing is compared with {path} (--skip-invalid leaves it out)"
            return Failure(FailureKind.INVALID, error.source or path, message, error.position)
        level = self.choice.effective(history.level)
        compares = bool(LEVELS[level].directions)
        if self.options.require_subject and not (versions if compares else history.versions):
            message = f"{self.baseline} has no earlier version of {wanted.subject}, and --require-subject asks for one"
            return Failure(FailureKind.NOT_REGISTERED, path, message)
        try:
            report = check_level(candidate, versions, level, every_version=True)
        except CompatError as error:
            return Failure(FailureKind.INCOMPARABLE, path, str(error))
        origin = "as asked" if self.choice.level else history.level_origin or "the default"
        checked = checked_of(
            report, subject=wanted.subject, baseline=self.baseline, level_origin=origin, known=history.known
        )
        terms = problems_of_terms(history.terms, report, wanted.subject)
        problems = (*checked.problems, *terms, *self._linted(candidate, versions, wanted.subject))
        notes = [*history.notes, *notes]
        return with_fingerprints(replace(checked, problems=problems, is_new=not history.versions, notes=tuple(notes)))

    def _linted(self, candidate: Schema, versions: Sequence[VersionedSchema], subject: str) -> tuple[Problem, ...]:
        """What the chosen lints find, beside the versions that are compared."""
        if not self.options.lints:
            return ()
        from headrace.compat.lints import Linted, lint_problems

        return lint_problems(self.options.lints, Linted(candidate, tuple(reversed(versions)), subject))

    def _versions(self, wanted: Wanted, candidate: Schema, history: History) -> tuple[list[VersionedSchema], list[str]]:
        """The versions that the level asks for; one that says the same word for word is the candidate itself.

        Raises:
            SchemaParseError: one of them is no schema, and such are not left out.
        """
        transitive = self.choice.is_transitive(history.level)
        rule = LEVELS[self.choice.effective(history.level)]
        asked = history.versions if transitive else history.versions[-1:]
        if not rule.directions and not any(lint.is_asked for lint in self.options.lints):
            asked = ()
        same_text = self._comparable_text(wanted)
        versions, notes = [], []
        for earlier in asked:
            try:
                schema = candidate if same_text(earlier) else earlier.parse()
            except SchemaParseError as error:
                if not self.options.skip_invalid:
                    raise
                notes.append(f"{earlier.label} is no valid schema, so nothing is compared with it: {error}")
            else:
                versions.append(VersionedSchema(earlier.version, schema, earlier.label))
        return versions, notes

    def _comparable_text(self, wanted: Wanted) -> Callable[[Earlier], bool]:
        """Whether a version's text is the candidate's; never where other files take part in its meaning."""
        if not self.types.stands_alone(wanted.file.path):
            return lambda _: False
        dense, plain = "".join(wanted.text.split()), None

        def is_same(earlier: Earlier) -> bool:
            nonlocal plain
            if earlier.text == wanted.text:
                return True
            if "".join(earlier.text.split()) != dense:  # quickly told of nearly all that differ
                return False
            plain = plain or plain_text(wanted.text)
            return plain_text(earlier.text) == plain

        return is_same


def with_leniency(outcome: Outcome, leniency: Leniency, today: datetime.date) -> Outcome:
    """The same outcome with what is suppressed or known marked, and what is to be told of that."""
    checked, notes = suppress(
        outcome.checked, leniency.suppressions, today, leniency.suppressions_origin, is_part=leniency.is_part
    )
    if leniency.known:
        checked, gone = leave_out_known(checked, leniency.known, leniency.baseline_file, os.path.lexists)
        notes = (*notes, *gone)
    return replace(outcome, checked=checked, notes=(*outcome.notes, *notes))
