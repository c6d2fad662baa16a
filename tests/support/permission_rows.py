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


def rows_of(role: str) -> tuple[PermissionRow, ...]:
    return tuple(row for row in ROWS if row.role == role)


def page_table(role: str) -> str:
    """Returns the table of docs/permissions.md with the permissions of a role."""
    lines: list[Sequence[str]] = [
        ("service", "`grant NAME …` in its users file", "ACLs of Apache Kafka", "without it the role cannot"),
        ("---", "---", "---", "---"),
        *(row.cells for row in rows_of(role)),
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines).replace("|  |", "| |").replace("| --- ", "|---")


def page_tables() -> str:
    """Prints all tables, to be pasted into the page."""
    return "\n\n".join(f"{role}\n\n{page_table(role)}" for role in ROLES)


if __name__ == "__main__":
    print(page_tables())
