"""A warehouse with one time partition as an immutable value, with which interleavings of processes run the loader's own
code: commit log, staging, published files, and the location of the partition in the metastore."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import IO, Any, NamedTuple

from headrace.hive_ddl.ops import AddPartitions, DropPartitions, Op, PartitionValues, SetPartitionLocation
from headrace.hive_ddl.table import TableState
from headrace.loader.errors import PublishedFileLost
from headrace.loader.storage.protocols import Publication
from support.simulation.interleavings import Call, MakeCall
from support.simulation.log_model import LogModel

Rows = tuple[int, ...]
"""The offsets of the rows in a file."""


def staged_name(rows: Rows) -> str:
    """Returns the name of a staged file with these rows. The name lists their offsets."""
    return f"{'-'.join(map(str, rows))}.avro"


def rows_of(staged: str) -> Rows:
    return tuple(map(int, staged.removesuffix(".avro").split("-")))


class Warehouse(NamedTuple):
    """The state of the warehouse.

    Attributes:
        paper: commit log and staging.
        files: pairs of name and rows of the published files.
        location: the directory of the time partition; "" if the metastore does not have it.
    """

    paper: LogModel
    files: frozenset[tuple[str, Rows]] = frozenset()
    location: str = ""

    def rows(self, name: str) -> Rows | None:
        return next((rows for found, rows in self.files if found == name), None)

    def visible(self) -> Counter[int]:
        """Returns the offsets that a query finds, each with the number of its rows."""
        found = [rows for name, rows in self.files if name.rpartition("/")[0] == self.location]
        return Counter(offset for rows in found for offset in rows)

    def is_settled(self, call: Call) -> bool:
        return self.paper.is_settled(call)

    def done(self, call: Call) -> tuple[Warehouse, Any]:
        match call.name, call.arguments:
            case "publish", (work, staged, name):
                exists = self.rows(name) is not None
                if (work, staged) in self.paper.staged:
                    files = self.files if exists else self.files | {(name, rows_of(staged))}
                    left = self.paper._replace(staged=self.paper.staged - {(work, staged)})
                    return self._replace(paper=left, files=files), True
                return self, exists
            case "length", (name,):
                return self, None if self.rows(name) is None else 1
            case "list files", (directory,):
                paths = [name.rpartition("/") for name, _ in self.files]
                return self, frozenset(name for parent, _, name in paths if parent == directory)
            case "link_or_copy", (source, target):
                rows = self.rows(source)
                if rows is None:
                    return self, False
                exists = self.rows(target) is not None
                return (self if exists else self._replace(files=self.files | {(target, rows)})), True
            case "remove files", (names,):
                return self._replace(files=frozenset(one for one in self.files if one[0] not in names)), None
            case "merge", (work, names):
                found = [self.rows(name) for name in names]
                if None in found:
                    return self, None
                staged = staged_name(tuple(sorted(offset for rows in found for offset in rows or ())))
                paper = self.paper._replace(staged=self.paper.staged | {(work, staged)})
                return self._replace(paper=paper), staged
            case "partition", ():
                return self, self.location
            case "point", (location,):
                return self._replace(location=location), None
        paper, result = self.paper.done(call)
        return self._replace(paper=paper), result


class ModelFiles:
    """The `WarehouseFiles` through which a process accesses the model."""

    root = ""
    listings_at_once = 1

    def __init__(self, make_call: MakeCall) -> None:
        self._make_call = make_call

    def publish(self, files: Sequence[Publication]) -> tuple[Publication, ...]:
        return tuple(file for file in files if not self._make_call("publish", file.run_id, file.staged, file.name))

    def link_or_copy(self, topic: str, source: str, target: str) -> None:
        if not self._make_call("link_or_copy", source, target):
            raise PublishedFileLost(topic, source, "it is missing")

    def move_uncommitted(self, source: str, target: str) -> bool:
        raise NotImplementedError

    def put(self, name: str, content: bytes) -> None:
        raise NotImplementedError

    def put_all(self, contents: Mapping[str, bytes]) -> None:
        raise NotImplementedError

    def remove(self, names: Sequence[str]) -> None:
        for name in names:
            self._make_call("remove files", (name,))

    def length(self, name: str) -> int | None:
        found: int | None = self._make_call("length", name)
        return found

    def open(self, name: str) -> IO[bytes]:
        return io.BytesIO()

    def children(self, directory: str) -> tuple[str, ...]:
        return ()

    def lengths(self, directory: str) -> Mapping[str, int | None]:
        return dict.fromkeys(self._make_call("list files", directory), 1)

    def location(self, name: str) -> str:
        return name

    def describe(self, name: str) -> str:
        return name


class ModelHive:
    """The metastore through which a process accesses the model; it has at most one partition."""

    def __init__(self, make_call: MakeCall, values: PartitionValues) -> None:
        self._make_call, self._values = make_call, values

    def ensure_database(self, name: str) -> None:
        raise NotImplementedError

    def table(self, database: str, name: str) -> TableState | None:
        raise NotImplementedError

    def partitions(
        self, database: str, name: str, wanted: Collection[PartitionValues] | None = None
    ) -> Mapping[PartitionValues, str]:
        location = self._make_call("partition")
        return {self._values: location} if location else {}

    def execute(self, op: Op) -> None:
        match op:
            case AddPartitions():
                self._make_call("point", op.partitions[0].location)
            case SetPartitionLocation():
                self._make_call("point", op.partition.location)
            case DropPartitions():
                self._make_call("point", "")
