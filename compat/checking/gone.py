"""Schemas that are no longer there: `SCHEMA_DELETED`, a rule about a run and not about a pair of schemas.

A schema is gone when a file that the command line would have named is in the baseline, or was there at `--since`, and
nothing has taken its place: no file is compared with what it was. In a registry that is any file of its subject; where
files are known by their paths, another one that happens to have the same subject has been there all along.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from headrace.compat import LEVELS
from headrace.compat.checking.baselines.base import Earlier, History, LevelChoice, Wanted
from headrace.compat.checking.inputs import SchemaFile
from headrace.compat.checking.scope import Scope
from headrace.compat.checking.type_sets import root_name
from headrace.compat.errors import NoSubject
from headrace.compat.finding import SCHEMA_DELETED, Severity
from headrace.compat.outcome import Checked, ComparedVersion, Problem, with_fingerprints
from headrace.compat.subjects import Naming, SchemaPlace


def wanted_of_gone(gone: Iterable[tuple[str, str]], scope: Scope, naming: Naming) -> list[Wanted]:
    """The files that are gone, save those whose subject cannot be told."""
    wanted = []
    for path, text in gone:
        with suppress(NoSubject):
            subject = naming.subject_of(SchemaPlace(path, root_name(text) if naming.needs_record else ""))
            wanted.append(Wanted(SchemaFile(path, scope.key(path)), subject, text))
    return wanted


def deletions(
    gone: Sequence[Wanted],
    histories: Sequence[History],
    others: Sequence[History],
    baseline: str,
    choice: LevelChoice,
) -> list[Checked]:
    """What is to be said of files that are gone.

    Args:
        histories: theirs; one without versions was never released.
        others: those of the files that are there, which have taken the place of what they are compared with.
    """
    taken = {history.versions[-1].label for history in others if history.versions}
    told: dict[str, Checked] = {}
    for wanted, history in zip(gone, histories, strict=True):
        level = choice.effective(history.level)
        if history.versions and history.versions[-1].label not in taken and LEVELS[level].directions:
            latest = history.versions[-1]
            origin = "as asked" if choice.level else history.level_origin or "the default"
            compared = (ComparedVersion(latest.version, latest.label),)
            place = (wanted.file.path, wanted.subject, baseline, level, origin, compared, history.known)
            told.setdefault(latest.label, Checked(*place, (_problem(wanted.subject, latest),)))
    return [with_fingerprints(checked) for checked in told.values()]


def _problem(subject: str, latest: Earlier) -> Problem:
    return Problem(
        rule=SCHEMA_DELETED,
        severity=Severity.ERROR,
        direction=None,
        version=latest.version,
        version_name=latest.label,
        pointer="",
        line=0,
        column=0,
        sentence=f"the schema is gone, and nothing takes the place of {latest.label} (subject {subject})",
        fix="bring it back; or, if nobody reads or writes its data any more, say so in compat.suppressions with rule "
        f"{SCHEMA_DELETED}, this path and a reason",
    )
