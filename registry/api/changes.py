"""Collects the changes that a request makes, and writes them to the audit log with the response."""

from __future__ import annotations

from typing import Any, Final

from flask import Flask, Response, g, request

from headrace.registry.api.access import principal
from headrace.registry.domain import ConfigChange
from headrace.registry.operation.audit_log import AuditLog

PLAIN_KEYS: Final = (
    "compatibility",
    "compatibility_policy",
    "compatibility_group",
    "normalize",
    "validate_fields",
    "validate_new_schemas",
    "validate_rules",
    "alias",
    "alias_for_deks",
)
"""Settings whose values are logged. Metadata and rules may hold secrets, so only their names are logged."""


def record_change(action: str, **details: Any) -> None:
    """Records a change that the current request has made, for the audit log.

    Args:
        action: the name of the kind of change, such as `subject_deleted`.
        details: the fields of the log line.
    """
    g.setdefault("changes", []).append((action, details))


def changed_settings(change: ConfigChange) -> dict[str, Any]:
    """The changed settings for the audit log, with `…` for values that may be secret."""
    return {key: getattr(change.values, key) if key in PLAIN_KEYS else "…" for key in sorted(change.changed_keys)}


def install(app: Flask, log: AuditLog) -> None:
    """Writes the changes that requests of the app make to the audit log `log`."""

    def write_changes(response: Response) -> Response:
        for action, details in g.get("changes", ()):
            log.write(
                action,
                details,
                user=principal().name,
                client=request.remote_addr or "",
                request_id=request.headers.get("X-Request-ID", "")[:200],
            )
        return response

    app.after_request(write_changes)
