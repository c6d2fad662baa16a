"""The permissions of docs/permissions.md, which tests grant exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BROKER, REGISTRY = "broker", "registry"
PRODUCER, CONSUMER, LOADER, OPERATOR = "producer", "consumer", "loader", "operator"
ROLES = (PRODUCER, CONSUMER, LOADER, OPERATOR)
TOPIC, AUDIT_TOPIC, READERS, LOADER_GROUP = "orders", "headrace.audit", "readers", "headrace-loader"


@dataclass(frozen=True, slots=True)
class PermissionRow:
    """A permission that a role needs.

    Attributes:
        service: `broker` or `registry`.
        grant: the last two words of a `grant` line in the service's users file.
        purpose: the operation that fails without the permission.
        operations: the operations that an ACL of Apache Kafka allows on the same topic or group instead.
    """

    role: str
    service: str
    grant: str
    purpose: str
    operations: tuple[str, ...] = ()

    @property
    def cells(self) -> tuple[str, ...]:
        service = "bundled broker" if self.service == BROKER else "registry"
        kafka = f"{', '.join(self.operations)} on {self.resource[0]} `{self.resource[1]}`" if self.operations else ""
        return (service, f"`{self.grant}`", kafka, self.purpose)

    @property
    def resource(self) -> tuple[str, str]:
        """The type and name of the broker's resource: (`topic`, `orders`)."""
        kind, _, name = self.grant.split()[1].partition(":")
        return kind, name


SEND, REGISTER, PUBLISH = "send messages", "register the schema", "publish the counts of messages"
READ, JOIN, DECODE = "read messages", "join the group, commit offsets", "decode values"
COMMIT, LIST_TOPICS, LAG = (
    "start: a load reads and commits the offsets of its group",
    "list the topic and its offsets",
    "show the loader's lag",
)
COUNTS, LIST_SUBJECTS = "read the counts of messages", "list and show the subject"

ROWS: tuple[PermissionRow, ...] = (
    PermissionRow(PRODUCER, BROKER, f"write topic:{TOPIC}", SEND, ("Write", "Create")),
    PermissionRow(PRODUCER, BROKER, f"write topic:{AUDIT_TOPIC}", PUBLISH, ("Write", "Create")),
    PermissionRow(PRODUCER, REGISTRY, f"write {TOPIC}-value", REGISTER),
    PermissionRow(PRODUCER, REGISTRY, f"write {AUDIT_TOPIC}-value", PUBLISH),
    PermissionRow(CONSUMER, BROKER, f"read topic:{TOPIC}", READ, ("Read",)),
    PermissionRow(CONSUMER, BROKER, f"read group:{READERS}", JOIN, ("Read",)),
    PermissionRow(CONSUMER, BROKER, f"write topic:{AUDIT_TOPIC}", PUBLISH, ("Write", "Create")),
    PermissionRow(CONSUMER, REGISTRY, f"read {TOPIC}-value", DECODE),
    PermissionRow(CONSUMER, REGISTRY, f"write {AUDIT_TOPIC}-value", PUBLISH),
    PermissionRow(LOADER, BROKER, f"read topic:{TOPIC}", READ, ("Read",)),
    PermissionRow(LOADER, BROKER, f"read group:{LOADER_GROUP}", COMMIT, ("Read",)),
    PermissionRow(LOADER, REGISTRY, f"read {TOPIC}-value", DECODE),
    PermissionRow(OPERATOR, BROKER, f"read topic:{TOPIC}", LIST_TOPICS, ("Describe",)),
    PermissionRow(OPERATOR, BROKER, f"read topic:{AUDIT_TOPIC}", COUNTS, ("Read",)),
    PermissionRow(OPERATOR, BROKER, f"read group:{LOADER_GROUP}", LAG, ("Describe",)),
    PermissionRow(OPERATOR, REGISTRY, f"read {TOPIC}-value", LIST_SUBJECTS),
    PermissionRow(OPERATOR, REGISTRY, f"read {AUDIT_TOPIC}-value", COUNTS),
)


POSTGRES_GRANTS: tuple[str, ...] = (
    "GRANT USAGE ON SCHEMA public TO registry_server;",
    "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO registry_server;",
    "GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO registry_server;",
)
"""Privileges of the PostgreSQL role that serves the registry on tables of another role, after each migration."""


@dataclass(frozen=True, slots=True)
class FileRow:
    """A permission on files, or a privilege in Hive, that a role needs.

    Attributes:
        role: loader, metastore or reader.
        system: `HDFS`, `S3` or `HIVE`.
        grant: an entry of an access control list, an action, or a statement.
        purpose: the operation that fails without the permission.
    """

    role: str
    system: str
    grant: str
    purpose: str


SYSTEMS = HDFS, S3, HIVE = ("HDFS", "S3", "Hive")
METASTORE, READER = "metastore", "reader"

FILE_ROWS: tuple[FileRow, ...] = (
    FileRow(LOADER, HDFS, "user:loader:rwx", "start"),
    FileRow(
        LOADER, HDFS, "default:user:loader:rwx", "write files of tables after the metastore created their directory"
    ),
    FileRow(METASTORE, HDFS, "user:hive:rwx", "create tables and their directories"),
    FileRow(METASTORE, HDFS, "default:user:hive:rwx", "add partitions"),
    FileRow(READER, HDFS, "user:analyst:r-x", "query tables"),
    FileRow(READER, HDFS, "default:user:analyst:r-x", "query partitions that loads create later"),
    FileRow(LOADER, S3, "s3:ListBucket", "start"),
    FileRow(LOADER, S3, "s3:GetObject", "read the commit log"),
    FileRow(LOADER, S3, "s3:PutObject", "start; write files and commits"),
    FileRow(LOADER, S3, "s3:DeleteObject", "start; move files to their partitions"),
    FileRow(LOADER, S3, "s3:AbortMultipartUpload", "delete the parts of a failed upload"),
    FileRow(READER, S3, "s3:ListBucket", "find the files of a table"),
    FileRow(READER, S3, "s3:GetObject", "read the files of a table"),
    FileRow(LOADER, HIVE, "ALTER DATABASE headrace SET OWNER USER loader", "create tables"),
    FileRow(
        LOADER, HIVE, "ALTER DATABASE headrace_quarantine SET OWNER USER loader", "create tables of the quarantine"
    ),
    FileRow(LOADER, HIVE, "ALTER DATABASE headrace_catalog SET OWNER USER loader", "create the catalogue"),
    FileRow(READER, HIVE, "GRANT SELECT ON headrace.orders TO USER analyst", "query or describe the table"),
)


def file_rows(system: str, *roles: str) -> tuple[FileRow, ...]:
    """Returns the rows of a system, of all roles or of these."""
    return tuple(row for row in FILE_ROWS if row.system == system and (not roles or row.role in roles))


def file_table(system: str) -> str:
    """Returns the table of docs/permissions.md with the permissions on files, or in Hive."""
    heading = {HDFS: "entry", S3: "action", HIVE: "statement"}[system]
    lines: list[Sequence[str]] = [
        ("role", heading, "without it the role cannot"),
        ("---", "---", "---"),
        *((row.role, f"`{row.grant}`", row.purpose) for row in file_rows(system)),
    ]
    return _markdown(lines)


def rows_of(role: str) -> tuple[PermissionRow, ...]:
    return tuple(row for row in ROWS if row.role == role)


def page_table(role: str) -> str:
    """Returns the table of docs/permissions.md with the permissions of a role."""
    lines: list[Sequence[str]] = [
        ("service", "`grant NAME …` in its users file", "ACLs of Apache Kafka", "without it the role cannot"),
        ("---", "---", "---", "---"),
        *(row.cells for row in rows_of(role)),
    ]
    return _markdown(lines)


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in lines).replace("|  |", "| |").replace("| --- ", "|---")


def page_tables() -> str:
    """Returns all tables, to be pasted into the page."""
    tables = {role: page_table(role) for role in ROLES} | {system: file_table(system) for system in SYSTEMS}
    return "\n\n".join(f"{name}\n\n{table}" for name, table in tables.items())


if __name__ == "__main__":
    print(page_tables())
