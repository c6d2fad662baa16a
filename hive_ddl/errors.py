"""Errors of mapping a schema to its Hive table.

HiveDdlError
├── UnsupportedColumn     a schema that no Hive table can have, usually because of one field
├── UnusableLocation      a directory name that Hive cannot use
├── ForeignTable          a table or view of that name exists and does not belong to the topic
├── StaleRevision         another writer changed the table since it was read
├── StatementRefused      the metastore, Spark or a file system refused an operation; the message contains the reason
├── MetastoreUnavailable  the metastore is unreachable, cannot be opened or returned an unknown response
│   └── MetastoreMisconfigured  its URI is malformed, or its lock file cannot be opened; waiting does not help
└── SessionFailed         Spark did not start, or this process already has a session
"""

from __future__ import annotations

from headrace.avro_schema.model import NO_POSITION, Position


class HiveDdlError(Exception):
    """Root of the errors of this package; the message is one line."""


class UnsupportedColumn(HiveDdlError):
    """A schema cannot be that of a Hive table, usually because no Hive column can hold one of its fields. `path` is the
    column and the member, item or value within it, "" for the schema itself; `reason` is a sentence."""

    def __init__(self, path: str, reason: str, position: Position = NO_POSITION) -> None:
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
    """A table or view that was created manually, or for another topic, warehouse or partitioning. Headrace does not
    change it."""

    def __init__(self, database: str, table: str, topic: str, reason: str) -> None:
        super().__init__(
            f"the Hive table {database}.{table} does not belong to topic {topic} ({reason}); "
            "rename or drop that table, then load again"
        )
        self.database = database
        self.table = table
        self.topic = topic
        self.reason = reason


class StaleRevision(HiveDdlError):
    """The table is not in the state on which the operation was planned; nothing was written. Read the table and plan
    again."""

    def __init__(self, database: str, table: str, expected: str, found: str) -> None:
        super().__init__(
            f"another writer changed the table {database}.{table}: expected revision {expected or 'none'}, "
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
    """The metastore cannot be used. `metastore` is its thrift:// or hive:// URI; for an embedded metastore it is the
    directory or the JDBC URL."""

    def __init__(self, metastore: str, reason: str) -> None:
        super().__init__(f"the Hive metastore {metastore} cannot be used: {reason}")
        self.metastore = metastore
        self.reason = reason


class MetastoreMisconfigured(MetastoreUnavailable):
    """The metastore cannot be used until an operator changes the URI, or the permissions of the metastore's files."""


class SessionFailed(HiveDdlError):
    pass
