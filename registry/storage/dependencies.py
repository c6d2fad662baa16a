"""Records the data versions that a response depends on, so that the response can be cached while they are current.

Every response is derived from rows that have a revision: the registry's revision, which grows with every change except
the adding of versions, and the revisions of the subjects whose versions were read. `Repository` records them while the
application reads: `@depends_on` declares the dependencies of each of its methods. A response that used a method without
a declaration is not cached, so a new method is slow at worst.

A revision is recorded before the data that it covers is read, and revisions only grow within one history of the
database. A response that was read after a later change therefore expires too early at worst, at any isolation level.
Once a revision check finds another history, no response from before it is served.

A response that depends on the registry's revision alone may be served for `LEASE_S` after the start of the last
revision check. A write that increases the revision therefore waits until all such leases have expired before it is
acknowledged: then no process on any host serves a response from before the write. A request that finds its change
already made waits too, because the process that made it may still be waiting. Clocks need not agree; they only have to
run at about the same rate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from inspect import isfunction
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from headrace.registry.domain import LATEST
from headrace.registry.errors import RegistryError
from headrace.registry.storage.cache import SubjectState, SubjectView
from headrace.registry.storage.revision import Revision

SUBJECT_LIST_ID: Final = -1
LEASE_S: Final = 0.020
LEASE_MARGIN: Final = 1.25  # tolerates a difference of a fifth between the clock rates of two hosts

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The registry's revision and the (row id, revision) of each subject that a response is derived from.

    The row id `SUBJECT_LIST_ID` stands for the list of subject names. Its revision grows with every new subject; any
    other change of the list increments the registry's revision.
    """

    revision: Revision
    subjects: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class SubjectDependency:
    """A dependency of a response on the list of a subject's versions, because the response counted or searched them."""

    name: str


class RegistryDependency:
    """A dependency of a response on data that changes with the registry's revision only."""


class SubjectNamesDependency:
    """A dependency of a response on the names of subjects, and on whether all versions of a subject are deleted."""


class Uncacheable:
    """Marks a response that must not be cached, because it depends on data that may grow with any registration, or on a
    method of `Repository` without `@depends_on`."""


Dependency = SubjectDependency | RegistryDependency | SubjectNamesDependency | Uncacheable
REGISTRY_DEPENDENCY: Final = RegistryDependency()
SUBJECT_NAMES_DEPENDENCY: Final = SubjectNamesDependency()
UNCACHEABLE: Final = Uncacheable()


def subject_revision(subject: str, *_: Any, **__: Any) -> Dependency:
    return SubjectDependency(subject)


def version_revision(subject: str, version: int, **_: Any) -> Dependency:
    # Only a deletion or an import gives a version number another schema, and both increase the registry's revision.
    return SubjectDependency(subject) if version == LATEST else REGISTRY_DEPENDENCY


def filtered_subject_revision(*, subject: str | None = None, **_: Any) -> Dependency:
    return UNCACHEABLE if subject is None else SubjectDependency(subject)


def registry_revision(*_: Any, **__: Any) -> Dependency:
    return REGISTRY_DEPENDENCY


def subject_names(*_: Any, **__: Any) -> Dependency:
    return SUBJECT_NAMES_DEPENDENCY


def uncacheable(*_: Any, **__: Any) -> Dependency:
    return UNCACHEABLE


class RevisionSource(Protocol):
    """The methods of `Repository` that read revisions."""

    _recorder: DependencyRecorder | None

    def revision(self) -> Revision: ...

    def subjects_revision(self) -> int: ...

    def subject_state(self, subject: str, /) -> SubjectState | None: ...

    def subject_view(self, subject: str, /) -> SubjectView: ...


N = TypeVar("N", bound=RevisionSource)
ReadMethod = Callable[Concatenate[N, P], T]


def depends_on(
    dependency: Callable[..., Dependency], *, uncacheable_if_none: bool = False
) -> Callable[[ReadMethod[N, P, T]], ReadMethod[N, P, T]]:
    """Decorator that declares which revision the result of a `Repository` method depends on.

    Args:
        dependency: computes the dependency from the method's arguments.
        uncacheable_if_none: makes a response uncacheable when the result is None, because the missing row may be added.
    """

    def declare(method: ReadMethod[N, P, T]) -> ReadMethod[N, P, T]:
        @wraps(method)
        def recorded(repository: N, /, *args: P.args, **kwargs: P.kwargs) -> T:
            recorder = repository._recorder
            if recorder is None:
                return method(repository, *args, **kwargs)
            # The declaration covers the methods that this one calls, so they record nothing.
            repository._recorder = None
            try:
                recorder.record(repository, dependency(*args, **kwargs))
                result = method(repository, *args, **kwargs)
            finally:
                repository._recorder = recorder
            if result is None and uncacheable_if_none:
                recorder.mark_uncacheable()
            return result

        recorded.__dict__["dependency"] = dependency
        return recorded

    return declare


def uncacheable_by_default(cls: type[T]) -> type[T]:
    """Class decorator: a response that used a public method of the class without `@depends_on` is not cached."""
    for name in dir(cls):
        method = getattr(cls, name)
        if isfunction(method) and not name.startswith("_") and not hasattr(method, "dependency"):
            setattr(cls, name, depends_on(uncacheable)(method))
    return cls


class DependencyRecorder:
    """Collects the dependencies of one request's response."""

    def __init__(self) -> None:
        self._revision: Revision | None = None
        self._subjects: dict[str | None, SubjectState | None] = {}
        self._is_cacheable = True

    def record(self, repository: RevisionSource, dependency: Dependency) -> None:
        """Records the current revision of the data that a method is about to read. To be called before the read.

        Args:
            repository: reads the revision.
            dependency: the data: the versions of a subject, the list of subjects, or data with the registry's revision.
                `Uncacheable` excludes the response from the cache.
        """
        if self._revision is None:
            if isinstance(dependency, SubjectDependency):
                # One statement reads the registry's revision and the subject's.
                repository.subject_view(dependency.name)
            self._revision = repository.revision()
        if isinstance(dependency, Uncacheable):
            self.mark_uncacheable()
        elif isinstance(dependency, SubjectNamesDependency) and self._is_cacheable and None not in self._subjects:
            self._subjects[None] = SubjectState(SUBJECT_LIST_ID, repository.subjects_revision())
        elif isinstance(dependency, SubjectDependency) and self._is_cacheable and dependency.name not in self._subjects:
            self._subjects[dependency.name] = repository.subject_state(dependency.name)

    def mark_uncacheable(self) -> None:
        """Excludes the response from the cache."""
        self._is_cacheable = False

    def dependencies(self) -> Dependencies | None:
        """Returns the recorded dependencies of the response. Returns None if the response must not be cached, which
        includes a response that read nothing or that depends on a subject which does not exist."""
        states = [state for state in self._subjects.values() if state is not None]
        if not self._is_cacheable or self._revision is None or len(states) != len(self._subjects):
            return None
        return Dependencies(self._revision, tuple((state.subject_id, state.revision) for state in states))


_recorder: ContextVar[DependencyRecorder | None] = ContextVar("dependency_recorder", default=None)


@contextmanager
def record_dependencies() -> Iterator[DependencyRecorder]:
    """Records the dependencies of all reads in this thread until the block ends."""
    recorder = DependencyRecorder()
    token = _recorder.set(recorder)
    try:
        yield recorder
    finally:
        _recorder.reset(token)


def current_recorder() -> DependencyRecorder | None:
    """The recorder of the request that this thread handles; None outside of `record_dependencies`."""
    return _recorder.get()


class RevisionedWrite(Protocol):
    has_bumped_revision: bool


R = TypeVar("R", bound=RevisionedWrite)


class WriteObserver:
    """Detects whether a write increased the registry's revision. Of several attempts only the last one counts, even if
    it failed: the database may have committed it before the connection broke."""

    def __init__(self) -> None:
        self.has_bumped_revision = False

    def observe(self, work: Callable[Concatenate[R, P], T]) -> Callable[Concatenate[R, P], T]:
        def observed(repository: R, /, *args: P.args, **kwargs: P.kwargs) -> T:
            self.has_bumped_revision = False
            try:
                result = work(repository, *args, **kwargs)
            except RegistryError:
                # An error may reveal a change that another request has just made: "version is already deleted".
                self.has_bumped_revision = repository.has_bumped_revision
                raise
            self.has_bumped_revision = repository.has_bumped_revision
            return result

        return observed


@contextmanager
def waiting_out_leases(lease_s: float) -> Iterator[WriteObserver]:
    """Context manager for a write. Makes the response to the request uncacheable. If the write increased the registry's
    revision, the exit waits until all leases have expired.

    Yields an observer. The caller runs `observer.observe(work)` instead of `work`, the function that writes.
    """
    recorder = _recorder.get()
    if recorder is not None:
        recorder.mark_uncacheable()
    observer = WriteObserver()
    try:
        yield observer
    finally:
        # Also after an error: the write may have committed before its connection broke, and a retry finds it made.
        if observer.has_bumped_revision:
            wait_out_leases(lease_s)


def wait_out_leases(lease_s: float) -> None:
    """Waits until all leases that are valid now have expired. Then no process serves a response from before the
    registry's current revision."""
    if lease_s:
        time.sleep(lease_s * LEASE_MARGIN)
