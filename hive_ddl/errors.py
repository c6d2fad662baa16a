"""What can go wrong between a schema and its Hive table.

HiveDdlError
├── UnsupportedColumn       an Avro type that no Hive column can hold
├── UnusableLocation        a directory whose name Hive cannot take where it must
├── ForeignTable            a table of that name exists and is not this topic's
├── StaleRevision           somebody changed the table since it was read
├── StatementRefused        the metastore said no; the message carries its reason
├── MetastoreUnavailable    it cannot be reached, opened or understood
└── SessionFailed           Spark itself did not start
"""

from __future__ import annotations

from headrace.avro_schema.model import NOWHERE, Position


class HiveDdlError(Exception):
    """Root of the package's errors; the message is one line for people."""


class UnsupportedColumn(HiveDdlError):
    """`path` names the column, and within it the member, item or value; `reason` is a sentence."""

    def __init__(self, path: str, reason: str, position: Position = NOWHERE) -> None:
        super().__init__(f"{path or 'the schema'} cannot be a Hive column: {reason}")
        self.path = path
        self.reason = reason
        self.position = position


class UnusableLocation(HiveDdlError):
    def __init__(self, location: str, reason: str) -> None:
        super().__init__(f"the directory {location} cannot hold this table: {reason}")
        self.location = location
        self.reason = reason


class ForeignTable(HiveDdlError):
    """A table that was made by hand, or for another topic or warehouse: it is never touched."""

    def __init__(self, database: str, table: str, topic: str, reason: str) -> None:
        super().__init__(
            f"topic {topic} waits: the Hive table {database}.{table} is not its own ({reason}); "
            "rename or drop that table, then load again"
        )
        self.database = database
        self.table = table
        self.topic = topic
        self.reason = reason


class StaleRevision(HiveDdlError):
    """The change was planned on a state that is no longer the table's; nothing was written. Read and plan again."""

    def __init__(self, database: str, table: str, expected: str, found: str) -> None:
        super().__init__(
            f"the table {database}.{table} was changed by somebody else: expected revision {expected or 'none'}, "
            f"found {found or 'none'}; nothing was changed"
        )
        self.database = database
        self.table = table
        self.expected = expected
        self.found = found


class StatementRefused(HiveDdlError):
    def __init__(self, subject: str, reason: str) -> None:
        super().__init__(f"the Hive metastore refused {subject}: {reason}")
        self.subject = subject
        self.reason = reason


class MetastoreUnavailable(HiveDdlError):
    """`where` is a thrift:// URI or the directory of a Derby metastore."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"the Hive metastore {where} cannot be used: {reason}")
        self.where = where
        self.reason = reason


class SessionFailed(HiveDdlError):
    pass
