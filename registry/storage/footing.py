"""What an answer rests on, so that it can be given again while that still holds.

Everything that the registry can answer follows from rows with a revision: that of the registry, which grows with all
but the adding of versions, and those of the subjects whose versions were looked at. The repository notes them while the
application reads: each of its methods says by `rests_on` what its result rests on, and of one that says nothing the
answer is not kept, so a new method is at worst slow.

A revision is noted before what rests on it is read and revisions only grow, in one history of the database; in another
one no answer of before is given. So an answer that saw a later change than
its footing says is at worst forgotten early, whatever the isolation of the read.

Answers that rest on the registry's revision alone may be given for `LEASE_S` after the beginning of the last look at
it. Therefore whoever makes it grow waits until all such looks are over before the change is acknowledged: then nobody,
in whatever process or host, gives an answer from before it. So does whoever acknowledges a change as made that it found
made: another may have made it a moment ago, and still wait. Clocks need not agree, they need only run at about the same
rate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from inspect import isfunction
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Protocol, TypeVar, cast

from headrace.registry.domain import LATEST
from headrace.registry.errors import RegistryError
from headrace.registry.storage.history import Moment
from headrace.registry.storage.kept import SubjectState

if TYPE_CHECKING:
    from headrace.registry.storage.repository import Repository

ALL_SUBJECTS: Final = -1
LEASE_S: Final = 0.020
LEASE_MARGIN: Final = 1.25  # clocks of two hosts that differ by a fifth in their rate would still do

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


def of_subject(subject: str, *_: Any, **__: Any) -> Ground:
    return Subject(subject)


def of_version(subject: str, version: int, **_: Any) -> Ground:
    # A number is never given to another schema but by a deletion or an import.
    return Subject(subject) if version == LATEST else SETTLED


def of_versions(*, subject: str | None = None, **_: Any) -> Ground:
    return GROWING if subject is None else Subject(subject)


def settled(*_: Any, **__: Any) -> Ground:
    return SETTLED


def names(*_: Any, **__: Any) -> Ground:
    return NAMES


def growing(*_: Any, **__: Any) -> Ground:
    return GROWING


class Noted(Protocol):
    """The repository, or a part of it."""

    _notes: FootingNotes | None


N = TypeVar("N", bound=Noted)
Question = Callable[Concatenate[N, P], T]


def rests_on(
    ground: Callable[..., Ground], *, may_be_missing: bool = False
) -> Callable[[Question[N, P, T]], Question[N, P, T]]:
    """Says of a method what its result rests on, by its arguments.

    With `may_be_missing` that holds when the result is not None: what is missing may come.
    """

    def declare(ask: Question[N, P, T]) -> Question[N, P, T]:
        @wraps(ask)
        def noted(repository: N, /, *args: P.args, **kwargs: P.kwargs) -> T:
            notes = repository._notes
            if notes is None:
                return ask(repository, *args, **kwargs)
            # What it asks in turn is part of it.
            repository._notes = None
            try:
                notes.note(cast("Repository", repository), ground(*args, **kwargs))
                found = ask(repository, *args, **kwargs)
            finally:
                repository._notes = notes
            if found is None and may_be_missing:
                notes.spoil()
            return found

        noted.__dict__["ground"] = ground
        return noted

    return declare


def others_grow(cls: type[T]) -> type[T]:
    """Of the methods of a class that say nothing the results rest on what may grow with any registration."""
    for name in dir(cls):
        method = getattr(cls, name)
        if isfunction(method) and not name.startswith("_") and not hasattr(method, "ground"):
            setattr(cls, name, rests_on(growing)(method))
    return cls


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


def current_notes() -> FootingNotes | None:
    """Those of the request that this thread answers."""
    return _notes.get()


class Watch:
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
def acknowledged(lease_s: float) -> Iterator[Watch]:
    """For a write: what answers its request is not kept, and it ends when nobody answers from before it any more."""
    notes = _notes.get()
    if notes is not None:
        notes.spoil()
    watch = Watch()
    try:
        yield watch
    finally:
        # Also after an error: a connection that broke may have committed, and whoever tries again finds it done.
        if watch.has_bumped:
            outwait_leases(lease_s)


def outwait_leases(lease_s: float) -> None:
    """Ends when nobody gives an answer any more that rests on an earlier revision of the registry alone."""
    if lease_s:
        time.sleep(lease_s * LEASE_MARGIN)
