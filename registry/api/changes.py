"""Collects the changes that a request makes, and writes them to the audit log with the response."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from flask import Flask, Response, g, request

from headrace.registry.api.access import principal
from headrace.registry.domain import ConfigEntry
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


HEADER_CHARS_MAX: Final = 200


def record_change(action: str, subject: str | None, **details: Any) -> None:
    """Records a change that the current request has made, for the audit log.

    Args:
        action: the name of the kind of change, such as `subject_deleted`.
        subject: the changed subject or scope; None is the default context.
        details: further fields of the log line.
    """
    g.setdefault("changes", []).append((action, subject, details))


def logged_settings(entry: ConfigEntry, keys: Iterable[str]) -> dict[str, Any]:
    """Returns some settings for the audit log, with `…` for values that may be secret and None for missing ones."""
    values = {key: getattr(entry, key) for key in sorted(keys)}
    return {key: value if value is None or key in PLAIN_KEYS else "…" for key, value in values.items()}


def install(app: Flask, log: AuditLog) -> None:
    """Writes the changes that requests of the app make to the audit log `log`."""

    def write_changes(response: Response) -> Response:
        for action, subject, details in g.get("changes", ()):
            log.write(action, subject, details, _origin())
        return response

    app.after_request(write_changes)


def _origin() -> dict[str, str]:
    """Returns the sender of the request. Clients can set the headers to any text."""
    headers = {"forwarded_for": "X-Forwarded-For", "request_id": "X-Request-ID"}
    sent = {key: request.headers.get(name, "")[:HEADER_CHARS_MAX] for key, name in headers.items()}
    return {
        "user": principal().name,
        "client": request.remote_addr or "",
        **{key: value for key, value in sent.items() if value},
    }
