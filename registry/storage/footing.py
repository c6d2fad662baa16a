"""What an answer rests on, so that it can be given again while that still holds.

Everything that the registry can answer follows from rows with a revision: that of the registry, which grows with all
but the adding of versions, and those of the subjects whose versions were looked at. `ServedDatabase` notes them while
the application reads. A method of the repository that `RESTS_ON` does not know makes an answer that is not kept, so a
new method is at worst slow.

A revision is noted before what rests on it is read and revisions only grow, in one history of the database; in another
one no answer of before is given. So an answer that saw a later change than
its footing says is at worst forgotten early, whatever the isolation of the read.

Answers that rest on the registry's revision alone may be given for `LEASE_S` after the beginning of the last look at
it. Therefore whoever makes it grow waits until all such looks are over before the change is acknowledged: then nobody,
in whatever process or host, gives an answer from before it. Clocks need not agree, they need only run at about the
same rate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast

from headrace.registry.domain import LATEST
from headrace.registry.errors import RegistryError
from headrace.registry.storage.database import WRITE_ATTEMPTS_MAX, Database
from headrace.registry.storage.history import Moment
from headrace.registry.storage.repository import Repository
from headrace.registry.storage.scopes import IdWanted
from headrace.registry.storage.views import SubjectState

ALL_SUBJECTS: Final = -1
LEASE_S: Final = 0.020
LEASE_MARGIN_S: Final = 0.005  # clocks of two hosts that differ by a fifth in their rate would still do

D = TypeVar("D")
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Footing:
    """The moment of the registry, and (row id, revision) of each subject, from which an answer follows.

    `ALL_SUBJECTS` in place of a row id has a revision that grows with new subjects: while the registry's is the same, a
    list of them changes by nothing else.
    """

    moment: Moment
    subjects: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Subject:
    """The versions of a subject may have been counted or searched."""

    name: str


class Settled:
    """Only the registry's revision moves with what was read."""


class Names:
    """Only names of subjects were read, with whether all their versions are deleted."""


class Growing:
    """What was read may grow with any registration."""


Ground = Subject | Settled | Names | Growing
SETTLED: Final = Settled()
NAMES: Final = Names()
GROWING: Final = Growing()


def _of_subject(subject: str, *_: Any, **__: Any) -> Ground:
    return Subject(subject)


def _of_version(subject: str, version: int, **_: Any) -> Ground:
    # A number is never given to another schema but by a deletion or an import.
    return Subject(subject) if version == LATEST else SETTLED


def _of_versions(*, subject: str | None = None, **_: Any) -> Ground:
    return GROWING if subject is None else Subject(subject)


def _settled(*_: Any, **__: Any) -> Ground:
    return SETTLED


def _names(*_: Any, **__: Any) -> Ground:
    return NAMES


RESTS_ON: Final[Mapping[str, Callable[..., Ground]]] = {
    "history": _settled,
    "moment": _settled,
    "revision": _settled,
    "settings_revision": _settled,
    "config": _settled,
    "configs": _settled,
    "aliases": _settled,
    "modes": _settled,
    "schema": _settled,
    "version": _of_version,
    "versions": _of_versions,
    "seen_versions": _of_subject,
    "subjects": _names,
    "subject_state": _of_subject,
    "subject_view": _of_subject,
    "version_numbers": _of_subject,
    # It grows with registrations, but it decides only who may read a schema: by more of them nobody loses that, and
    # refusals are not kept.
    "subjects_using": _settled,
}
"""What the results of the repository's methods rest on; those of all other methods are `GROWING`."""

MAY_BE_MISSING: Final = frozenset({"schema", "version"})
"""Methods whose result is settled only when it is not None: what is missing may come."""


class FootingNotes:
    """What one request has read so far."""

    def __init__(self) -> None:
        self._moment: Moment | None = None
        self._subjects: dict[str | None, SubjectState | None] = {}
        self._can_be_kept = True

    def note(self, repository: Repository, ground: Ground) -> None:
        """To be called before the read."""
        if self._moment is None:
            if isinstance(ground, Subject):
                # One statement that tells the registry's revision and the subject's.
                repository.subject_view(ground.name)
            self._moment = repository.moment()
        if isinstance(ground, Growing):
            self.spoil()
        elif isinstance(ground, Names) and self._can_be_kept and None not in self._subjects:
            self._subjects[None] = SubjectState(ALL_SUBJECTS, repository.subjects_revision())
        elif isinstance(ground, Subject) and self._can_be_kept and ground.name not in self._subjects:
            self._subjects[ground.name] = repository.subject_state(ground.name)

    def spoil(self) -> None:
        """The request's answer is not to be kept."""
        self._can_be_kept = False

    def footing(self) -> Footing | None:
        """None when the answer is not to be kept, which is also that of a request that did not read at all."""
        states = [state for state in self._subjects.values() if state is not None]
        if not self._can_be_kept or self._moment is None or len(states) != len(self._subjects):
            return None
        return Footing(self._moment, tuple((state.subject_id, state.revision) for state in states))


_notes: ContextVar[FootingNotes | None] = ContextVar("footing_notes", default=None)


@contextmanager
def noting() -> Iterator[FootingNotes]:
    """Notes what is read in this thread until the end of the block."""
    notes = FootingNotes()
    token = _notes.set(notes)
    try:
        yield notes
    finally:
        _notes.reset(token)


class _NotingRepository:
    """A repository that notes what is asked of it."""

    def __init__(self, repository: Repository, notes: FootingNotes) -> None:
        self._repository = repository
        self._notes = notes

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._repository, name)
        if not callable(member):
            return member
        rests_on = RESTS_ON.get(name)

        def read(*args: Any, **kwargs: Any) -> Any:
            self._notes.note(self._repository, GROWING if rests_on is None else rests_on(*args, **kwargs))
            found = member(*args, **kwargs)
            if found is None and name in MAY_BE_MISSING:
                self._notes.spoil()
            return found

        return read


class ServedDatabase(Database):
    """A database whose changes are acknowledged only when nobody answers from before them any more."""

    def read(self, work: Callable[[Repository], T], *, one_view: bool = True) -> T:
        notes = _notes.get()
        if notes is None:
            return super().read(work, one_view=one_view)
        return super().read(
            lambda repository: work(cast(Repository, _NotingRepository(repository, notes))), one_view=one_view
        )

    def write(
        self,
        work: Callable[[Repository], T],
        attempts: int = WRITE_ATTEMPTS_MAX,
        *,
        new_id: IdWanted | None = None,
        in_one_statement: bool = False,
    ) -> T:
        with _acknowledged() as watch:
            return super().write(watch.over(work), attempts, new_id=new_id, in_one_statement=in_one_statement)

    def outwait_change(self) -> None:
        super().outwait_change()
        _outwait_leases()

    def write_in_turn(
        self,
        subject: str,
        decide: Callable[[Repository], D],
        work: Callable[[Repository, D], T],
        *,
        new_id: Callable[[D], IdWanted | None],
    ) -> T:
        with _acknowledged() as watch:
            return super().write_in_turn(subject, decide, watch.over(work), new_id=new_id)


class _Watch:
    """Whether what was done last, and may have been committed, made the registry's revision grow."""

    def __init__(self) -> None:
        self.has_bumped = False

    def over(self, work: Callable[Concatenate[Repository, P], T]) -> Callable[Concatenate[Repository, P], T]:
        def watched(repository: Repository, /, *args: P.args, **kwargs: P.kwargs) -> T:
            self.has_bumped = False
            try:
                result = work(repository, *args, **kwargs)
            except RegistryError:
                # A refusal may tell of a change that others have just made, as that the version is deleted already.
                self.has_bumped = repository.has_bumped_revision
                raise
            self.has_bumped = repository.has_bumped_revision
            return result

        return watched


@contextmanager
def _acknowledged() -> Iterator[_Watch]:
    """For a write: what answers its request is not kept, and it ends when nobody answers from before it any more."""
    notes = _notes.get()
    if notes is not None:
        notes.spoil()
    watch = _Watch()
    try:
        yield watch
    finally:
        # Also after an error: a connection that broke may have committed, and whoever tries again finds it done.
        if watch.has_bumped:
            _outwait_leases()


def _outwait_leases() -> None:
    time.sleep(LEASE_S + LEASE_MARGIN_S)
