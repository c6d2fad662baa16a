"""What a request has changed, for the audit log: views say it, and it is written when the change is answered."""

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
"""Settings whose values are told; of the others, metadata and rules, only that they were given."""


def note_change(action: str, **what: Any) -> None:
    """Says what the present request has just changed."""
    g.setdefault("changes", []).append((action, what))


def settings_given(change: ConfigChange) -> dict[str, Any]:
    """What a change of configuration says, without what may be secret."""
    return {key: getattr(change.values, key) if key in PLAIN_KEYS else "…" for key in sorted(change.given)}


def install(app: Flask, log: AuditLog) -> None:
    """Has the changes of every request of the app written."""

    def write_changes(response: Response) -> Response:
        for action, what in g.get("changes", ()):
            log.write(
                action,
                what,
                user=principal().name,
                client=request.remote_addr or "",
                request_id=request.headers.get("X-Request-ID", "")[:200],
            )
        return response

    app.after_request(write_changes)
