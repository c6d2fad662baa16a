"""The permission that each API request requires, and the check of a principal's permissions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from headrace.registry.access.permissions import Permission, Target
from headrace.registry.access.users import Principal

UNAUTHENTICATED: Final = 40101
FORBIDDEN: Final = 40301


class ResourceKind(Enum):
    """The kind of resource on which a request requires its permission."""

    PUBLIC_INFO = auto()
    """No resource: anonymous clients have access too. Probes cannot authenticate, and these responses reveal no
    content."""
    ANY_SUBJECT = auto()
    """Any subject. Lists of subjects and versions include only the subjects that the principal may read."""
    SUBJECT = auto()
    """The subject in the path."""
    SCOPE = auto()
    """The subject or context in the path of a configuration or mode request, or all contexts; without one, the default
    context."""
    CONTEXT = auto()
    """The context in the path; without one, everything."""
    SCHEMA = auto()
    """Any subject that uses the schema in the path. These subjects are known only after the schema was read; before
    that the request is checked like `ANY_SUBJECT`."""


@dataclass(frozen=True, slots=True)
class RequiredPermission:
    permission: Permission
    resource: ResourceKind
    admin_parameter: str = ""
    """Query parameter that raises the requirement to `Permission.ADMIN`."""


PUBLIC: Final = RequiredPermission(Permission.READ, ResourceKind.PUBLIC_INFO)
READ_ANY_SUBJECT: Final = RequiredPermission(Permission.READ, ResourceKind.ANY_SUBJECT)
READ_SUBJECT: Final = RequiredPermission(Permission.READ, ResourceKind.SUBJECT)
WRITE_SUBJECT: Final = RequiredPermission(Permission.WRITE, ResourceKind.SUBJECT)
REGISTER: Final = RequiredPermission(Permission.WRITE, ResourceKind.SUBJECT, admin_parameter="force")
DELETE_SUBJECT: Final = RequiredPermission(Permission.WRITE, ResourceKind.SUBJECT, admin_parameter="permanent")
READ_SCOPE: Final = RequiredPermission(Permission.READ, ResourceKind.SCOPE)
ADMIN_SCOPE: Final = RequiredPermission(Permission.ADMIN, ResourceKind.SCOPE)
READ_SCHEMA: Final = RequiredPermission(Permission.READ, ResourceKind.SCHEMA)

_SUBJECT = "/subjects/{subject}"
_VERSION = "/subjects/{subject}/versions/{version}"
REQUIRED_PERMISSIONS: Final[Mapping[tuple[str, str], RequiredPermission]] = {
    ("GET", "/"): PUBLIC,
    ("POST", "/"): PUBLIC,
    ("GET", "/healthz"): PUBLIC,
    ("GET", "/readyz"): PUBLIC,
    ("GET", "/openapi.json"): PUBLIC,
    ("GET", "/metrics"): READ_ANY_SUBJECT,
    ("GET", "/v1/metadata/id"): PUBLIC,
    ("GET", "/v1/metadata/version"): PUBLIC,
    ("GET", "/v1/metadata/deployment"): PUBLIC,
    ("GET", "/subjects"): READ_ANY_SUBJECT,
    ("POST", _SUBJECT): READ_SUBJECT,
    ("DELETE", _SUBJECT): DELETE_SUBJECT,
    ("GET", f"{_SUBJECT}/metadata"): READ_SUBJECT,
    ("GET", f"{_SUBJECT}/versions"): READ_SUBJECT,
    ("POST", f"{_SUBJECT}/versions"): REGISTER,
    ("GET", _VERSION): READ_SUBJECT,
    ("DELETE", _VERSION): DELETE_SUBJECT,
    ("GET", f"{_VERSION}/schema"): READ_SUBJECT,
    ("GET", f"{_VERSION}/referencedby"): READ_SUBJECT,
    ("POST", f"{_VERSION}/tags"): WRITE_SUBJECT,
    ("POST", f"/compatibility{_SUBJECT}/versions"): READ_SUBJECT,
    ("POST", f"/compatibility{_VERSION}"): READ_SUBJECT,
    ("GET", "/schemas"): READ_ANY_SUBJECT,
    ("GET", "/schemas/types"): PUBLIC,
    ("GET", "/schemas/ids/{id}"): READ_SCHEMA,
    ("GET", "/schemas/ids/{id}/schema"): READ_SCHEMA,
    ("GET", "/schemas/ids/{id}/subjects"): READ_SCHEMA,
    ("GET", "/schemas/ids/{id}/versions"): READ_SCHEMA,
    ("GET", "/schemas/guids/{guid}"): READ_SCHEMA,
    ("GET", "/schemas/guids/{guid}/ids"): READ_SCHEMA,
    # Every client that may read something may see the defaults.
    ("GET", "/config"): READ_ANY_SUBJECT,
    ("PUT", "/config"): ADMIN_SCOPE,
    ("DELETE", "/config"): ADMIN_SCOPE,
    ("GET", "/config/{subject}"): READ_SCOPE,
    ("PUT", "/config/{subject}"): ADMIN_SCOPE,
    ("DELETE", "/config/{subject}"): ADMIN_SCOPE,
    ("GET", "/mode"): READ_ANY_SUBJECT,
    ("PUT", "/mode"): ADMIN_SCOPE,
    ("DELETE", "/mode"): ADMIN_SCOPE,
    ("GET", "/mode/{subject}"): READ_SCOPE,
    ("PUT", "/mode/{subject}"): ADMIN_SCOPE,
    ("DELETE", "/mode/{subject}"): ADMIN_SCOPE,
    ("GET", "/contexts"): READ_ANY_SUBJECT,
    ("GET", "/scopes"): READ_ANY_SUBJECT,
    ("GET", "/contexts/{context}"): READ_ANY_SUBJECT,
    ("DELETE", "/contexts/{context}"): RequiredPermission(Permission.ADMIN, ResourceKind.CONTEXT),
    # The response has the content of all contexts.
    ("POST", "/replication"): RequiredPermission(Permission.READ, ResourceKind.CONTEXT),
    # Paths with an invalid context name return 400, other paths that match return 404.
    **{(method, "/contexts/{context}/{_rest}"): READ_ANY_SUBJECT for method in ("GET", "POST", "PUT", "DELETE")},
}
"""The required permission of each method and route; HEAD requires the same as GET, and OPTIONS is public. Routes are
spelled as `route_label` returns them."""

ADMIN_ALL_CONTEXTS: Final = RequiredPermission(Permission.ADMIN, ResourceKind.CONTEXT)
"""Required for routes that are missing in the table, so that a forgotten route is never public."""

_PARAMETER = re.compile(r"<(?:[^:<>]+:)?([^<>]+)>")
_LABELS: Final = {"schema_id": "id"}
"""Path parameters whose name in the API differs from the name in the URL rule."""


def route_label(rule: str) -> str:
    """Converts a URL rule of Flask (`/schemas/ids/<int:schema_id>`) to the notation of the documentation:
    `/schemas/ids/{id}`."""
    return _PARAMETER.sub(lambda found: "{" + _LABELS.get(found[1], found[1]) + "}", rule)


def required_permission(method: str, route: str) -> RequiredPermission:
    """Returns the permission that a request requires, and the kind of resource on which it is required.

    Args:
        method: the HTTP method.
        route: the matched URL rule, as `route_label` returns it.
    """
    if method == "OPTIONS":
        return PUBLIC
    return REQUIRED_PERMISSIONS.get(("GET" if method == "HEAD" else method, route), ADMIN_ALL_CONTEXTS)


@dataclass(frozen=True, slots=True)
class Denial:
    """The error response to a denied request. Status 401: credentials are missing or wrong. Status 403: the client
    lacks the permission. Status 429: the password could not be checked in time."""

    status: int
    error_code: int
    message: str


NO_CREDENTIALS: Final = Denial(401, UNAUTHENTICATED, "Unauthorized: this request requires a user and password")
WRONG_TOKEN: Final = Denial(401, UNAUTHENTICATED, "Unauthorized: the token is expired or not valid for this registry")
WRONG_CREDENTIALS: Final = Denial(401, UNAUTHENTICATED, "Unauthorized: unknown user or wrong password")
TOO_BUSY: Final = Denial(429, 429, "Too many password checks at once; try again")


def authorize(
    principal: Principal, permission: Permission, resource: ResourceKind, target: Target | None
) -> Denial | None:
    """Returns None when the principal may make the request, otherwise the denial.

    Args:
        principal: the sender.
        permission: the required permission.
        resource: the kind of resource on which the permission is required.
        target: the resource; None if the request names none.
    """
    if resource is ResourceKind.PUBLIC_INFO:
        return None
    if resource in (ResourceKind.ANY_SUBJECT, ResourceKind.SCHEMA):
        highest = principal.permissions.highest_anywhere
        allowed = highest is not None and highest >= permission
    else:
        allowed = principal.permissions.allow(permission, target or Target())
    if allowed:
        return None
    return NO_CREDENTIALS if not principal.name else forbidden(principal, permission, target)


def forbidden(principal: Principal, permission: Permission, target: Target | None) -> Denial:
    """The denial for a principal that lacks a permission on a target."""
    resource = "any subject" if target is None else target
    return Denial(
        403, FORBIDDEN, f"User:{principal.name} is denied operation {permission.name.capitalize()} on {resource}"
    )
