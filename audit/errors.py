"""Errors of the audit package.

AuditError
├── StoreUnavailable      audit.db cannot be opened, read or written
├── IngestFailed          the audit topic cannot be read
└── BadAuditMessage       a message of the audit topic is not an audit row
"""

from __future__ import annotations


class AuditError(Exception):
    """Root of the errors of the audit package."""


class StoreUnavailable(AuditError):
    """The database cannot be used; `location` is its path."""

    def __init__(self, location: str, reason: str) -> None:
        super().__init__(f"cannot use the audit database {location}: {reason}")
        self.location = location


class IngestFailed(AuditError):
    """The audit topic cannot be read: the brokers cannot be reached, do not respond or refuse the request. `servers`
    are the bootstrap servers."""

    def __init__(self, topic: str, servers: str, reason: str) -> None:
        super().__init__(f"cannot read the audit topic {topic} at {servers}: {reason}")
        self.topic = topic
        self.servers = servers


class BadAuditMessage(AuditError):
    """A message of the audit topic is not an audit row: it has no schema id, does not match its schema, lacks a field
    of the audit schema, or has an invalid value."""
