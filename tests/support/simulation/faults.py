"""Injects faults at every external call of a load, in one process.

`Faults` counts the calls of the storage, the brokers, the registry, the metastore and the audit database, and injects a
fault at one of them: the process dies, the call fails or hangs, its response is lost, or another process runs before
the call.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pytest

from headrace.audit.errors import StoreUnavailable
from headrace.audit.storage.store import AuditStore
from headrace.hive_ddl.errors import MetastoreUnavailable
from headrace.kafka_wire.errors import KafkaUnavailable
from headrace.loader.storage.local.commit_storage import LocalCommitStorage
from headrace.loader.storage.local.files import LocalFiles
from headrace.loader.storage.local.sink import LocalSink
from headrace.loader.storage.local.staging import LocalStaging
from headrace.registry.errors import RegistryUnavailable
from support.loader.loader_fakes import FakeHive, FakeRegistry
from support.loader.task_world import ServingCluster
from support.simulation.extent import every
from support.simulation.power_loss import Killed


class Fault(StrEnum):
    DIES_BEFORE = "the process dies before it"
    DIES_AFTER = "the process dies after it"
    FAILS = "it fails"
    REPLY_LOST = "it is done and its reply is lost"
    HANGS = "it is given up, and done when the load has ended"


def _of_disk(reason: str) -> Exception:
    number = errno.ETIMEDOUT if reason == "timed out" else errno.EIO
    return OSError(number, os.strerror(number))


@dataclass(frozen=True)
class _Calls:
    """The external calls of one class.

    Attributes:
        reads: names of the methods that only read.
        changes: names of the methods that change something.
        error: makes the error that a failing call raises, from its message.
    """

    reads: tuple[str, ...]
    changes: tuple[str, ...]
    error: Callable[[str], Exception]


CALLS: Mapping[type, _Calls] = {
    LocalCommitStorage: _Calls(
        ("read", "exists", "children"),
        ("prepare", "put_if_absent", "persist", "replace", "remove", "delete_temporary_files"),
        _of_disk,
    ),
    LocalStaging: _Calls(("run_ids", "is_older"), ("write_file", "persist", "move", "drop"), _of_disk),
    LocalFiles: _Calls(
        ("length", "lengths", "open", "children"), ("publish", "link_or_copy", "put", "remove"), _of_disk
    ),
    LocalSink: _Calls((), ("__init__", "append", "finish"), _of_disk),
    ServingCluster: _Calls(
        ("metadata", "lookup_offsets", "lookup_epoch_ends", "fetch"),
        ("commit_group_offsets",),
        lambda reason: KafkaUnavailable(f"broker:1 {reason}"),
    ),
    FakeRegistry: _Calls(
        ("identity", "versions", "version", "schema_by_id"),
        (),
        lambda reason: RegistryUnavailable("http://registry", reason),
    ),
    FakeHive: _Calls(
        ("table", "partitions"),
        ("ensure_database", "execute"),
        lambda reason: MetastoreUnavailable("thrift://metastore", reason),
    ),
    AuditStore: _Calls(("counted_commits",), ("add_committed",), lambda reason: StoreUnavailable("audit.db", reason)),
}


CHANGES = frozenset(f"{owner.__name__}.{name}" for owner, calls in CALLS.items() for name in calls.changes)
"""Names of the calls that change something."""


def sampled(calls: Sequence[str], numbers: Sequence[int]) -> list[int]:
    """Returns the numbers of all calls that change something, and of every third read; in `make test-full` of every
    read."""
    reads = [number for number in numbers if calls[number] not in CHANGES][:: every(3)]
    return sorted([*reads, *(number for number in numbers if calls[number] in CHANGES)])


@dataclass
class Faults:
    """Counts external calls and injects a fault at one of them.

    Attributes:
        at: number of the call, from 0; -1 for none.
        fault: the fault at this call.
        meanwhile: called before this call, such as another load.
        calls: names of all calls so far. Calls that are made within another call are not counted.
        late: completes a call that hangs.
    """

    at: int = -1
    fault: Fault | None = None
    meanwhile: Callable[[], None] | None = None
    calls: list[str] = field(default_factory=list)
    is_dead: bool = False
    is_inside: bool = False
    late: Callable[[], object] = lambda: None

    @contextlib.contextmanager
    def injected(self) -> Iterator[Faults]:
        """Runs the body of the context as a process with faults. At its end, completes a call that hangs."""
        with pytest.MonkeyPatch.context() as patch:
            for owner, calls in CALLS.items():
                for name in (*calls.reads, *calls.changes):
                    patch.setattr(owner, name, self._faulty(owner, name, calls))
            yield self
        with contextlib.suppress(Exception):
            self.late()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Runs the body of the context as another process: its calls are not counted and have no faults."""
        self.is_inside = True
        try:
            yield
        finally:
            self.is_inside = False

    def _faulty(self, owner: type, name: str, calls: _Calls) -> Callable[..., Any]:
        original = getattr(owner, name)

        @functools.wraps(original)
        def call(*arguments: Any, **named: Any) -> Any:
            if self.is_dead:
                raise Killed
            if self.is_inside:
                return original(*arguments, **named)
            with self.held():
                return self._call(f"{owner.__name__}.{name}", functools.partial(original, *arguments, **named), calls)

        return call

    def _call(self, name: str, done: Callable[[], Any], calls: _Calls) -> Any:
        number = len(self.calls)
        self.calls.append(name)
        if number != self.at:
            return done()
        if self.meanwhile is not None:
            self.meanwhile()
            return done()
        match self.fault:
            case Fault.DIES_BEFORE:
                self.is_dead = True
                raise Killed
            case Fault.DIES_AFTER:
                done()
                self.is_dead = True
                raise Killed
            case Fault.REPLY_LOST:
                done()
                raise calls.error("connection reset")
            case Fault.HANGS:
                self.late = done
                raise calls.error("timed out")
            case _:
                raise calls.error("refused")
