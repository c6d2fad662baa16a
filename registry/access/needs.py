"""Which right each call of the API needs, and whether a principal has it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from headrace.registry.access.rights import Right, Target
from headrace.registry.access.users import Principal

UNAUTHENTICATED: Final = 40101
FORBIDDEN: Final = 40301


class About(Enum):
    """What a call needs its right on."""

    NOTHING = auto()
    """Open to all: probes cannot sign in, and these answers say nothing of what the registry holds."""
    ANYTHING = auto()
    """The right on any subject; a list then shows only what may be read."""
    SUBJECT = auto()
    """The subject in the path."""
    SCOPE = auto()
    """The subject or context in the path whose configuration or mode is meant; without one, the default context."""
    CONTEXT = auto()
    """The context in the path."""
    SCHEMA = auto()
    """One of the subjects that use the schema in the path. Found out with the schema; before that as `ANYTHING`."""


@dataclass(frozen=True, slots=True)
class Need:
    right: Right
    about: About
    raised_by: str = ""
    """The query parameter that asks for more than that and needs `Right.ADMIN`."""


OPEN: Final = Need(Right.READ, About.NOTHING)
READ_ANYTHING: Final = Need(Right.READ, About.ANYTHING)
READ_SUBJECT: Final = Need(Right.READ, About.SUBJECT)
WRITE_SUBJECT: Final = Need(Right.WRITE, About.SUBJECT)
REGISTER: Final = Need(Right.WRITE, About.SUBJECT, raised_by="force")
DELETE_SUBJECT: Final = Need(Right.WRITE, About.SUBJECT, raised_by="permanent")
READ_SCOPE: Final = Need(Right.READ, About.SCOPE)
ADMIN_SCOPE: Final = Need(Right.ADMIN, About.SCOPE)
READ_SCHEMA: Final = Need(Right.READ, About.SCHEMA)

_SUBJECT = "/subjects/{subject}"
_VERSION = "/subjects/{subject}/versions/{version}"
NEEDS: Final[Mapping[tuple[str, str], Need]] = {
    ("GET", "/"): OPEN,
    ("POST", "/"): OPEN,
    ("GET", "/healthz"): OPEN,
    ("GET", "/readyz"): OPEN,
    ("GET", "/openapi.json"): OPEN,
    ("GET", "/metrics"): READ_ANYTHING,
    ("GET", "/v1/metadata/id"): OPEN,
    ("GET", "/v1/metadata/version"): OPEN,
    ("GET", "/v1/metadata/deployment"): OPEN,
    ("GET", "/subjects"): READ_ANYTHING,
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
    ("GET", "/schemas"): READ_ANYTHING,
    ("GET", "/schemas/types"): OPEN,
    ("GET", "/schemas/ids/{id}"): READ_SCHEMA,
    ("GET", "/schemas/ids/{id}/schema"): READ_SCHEMA,
    ("GET", "/schemas/ids/{id}/subjects"): READ_SCHEMA,
    ("GET", "/schemas/ids/{id}/versions"): READ_SCHEMA,
    ("GET", "/schemas/guids/{guid}"): READ_SCHEMA,
    ("GET", "/schemas/guids/{guid}/ids"): READ_SCHEMA,
    # What holds where nothing else is set is no secret of anyone who may read something.
    ("GET", "/config"): READ_ANYTHING,
    ("PUT", "/config"): ADMIN_SCOPE,
    ("DELETE", "/config"): ADMIN_SCOPE,
    ("GET", "/config/{subject}"): READ_SCOPE,
    ("PUT", "/config/{subject}"): ADMIN_SCOPE,
    ("DELETE", "/config/{subject}"): ADMIN_SCOPE,
    ("GET", "/mode"): READ_ANYTHING,
    ("PUT", "/mode"): ADMIN_SCOPE,
    ("DELETE", "/mode"): ADMIN_SCOPE,
    ("GET", "/mode/{subject}"): READ_SCOPE,
    ("PUT", "/mode/{subject}"): ADMIN_SCOPE,
    ("DELETE", "/mode/{subject}"): ADMIN_SCOPE,
    ("GET", "/contexts"): READ_ANYTHING,
    ("GET", "/contexts/{context}"): READ_ANYTHING,
    ("DELETE", "/contexts/{context}"): Need(Right.ADMIN, About.CONTEXT),
    # It tells everything.
    ("POST", "/follow"): Need(Right.READ, About.CONTEXT),
    # Calls in what can be no context, which find nothing.
    **{(method, "/contexts/{context}/{_rest}"): READ_ANYTHING for method in ("GET", "POST", "PUT", "DELETE")},
}
"""By method and route, as `route_label` writes it."""

ADMIN_EVERYWHERE: Final = Need(Right.ADMIN, About.CONTEXT)
"""Of a call that the table does not know, so that a route that somebody forgets is not open."""

_PARAMETER = re.compile(r"<(?:[^:<>]+:)?([^<>]+)>")
_LABELS: Final = {"schema_id": "id"}
"""Names of path parameters in the API where the views call them something else."""


def route_label(rule: str) -> str:
    """A URL rule as people write it: `/schemas/ids/{id}`."""
    return _PARAMETER.sub(lambda found: "{" + _LABELS.get(found[1], found[1]) + "}", rule)


def need_of(method: str, route: str) -> Need:
    """What a call needs."""
    if method == "OPTIONS":
        return OPEN
    return NEEDS.get(("GET" if method == "HEAD" else method, route), ADMIN_EVERYWHERE)


@dataclass(frozen=True, slots=True)
class Refusal:
    """`status` 401 asks for credentials, 403 says that these do not suffice; the rest is the API's answer."""

    status: int
    error_code: int
    message: str


NO_CREDENTIALS: Final = Refusal(401, UNAUTHENTICATED, "Unauthorized: this needs a user and password")
WRONG_TOKEN: Final = Refusal(401, UNAUTHENTICATED, "Unauthorized: the token is not valid here, or no longer")
WRONG_CREDENTIALS: Final = Refusal(401, UNAUTHENTICATED, "Unauthorized: unknown user or wrong password")
TOO_BUSY: Final = Refusal(429, 429, "Too many passwords to check at once; try again")


def decide(principal: Principal, right: Right, about: About, target: Target | None) -> Refusal | None:
    """None when a principal may make a call.

    Args:
        principal: who asks.
        right: what the call needs.
        about: on what; see `Need`.
        target: what that is, where the call names it.
    """
    if about is About.NOTHING:
        return None
    if about in (About.ANYTHING, About.SCHEMA):
        most = principal.rights.somewhere
        allowed = most is not None and most >= right
    else:
        allowed = principal.rights.allow(right, target or Target())
    if allowed:
        return None
    return NO_CREDENTIALS if not principal.name else denied(principal, right, target)


def denied(principal: Principal, right: Right, target: Target | None) -> Refusal:
    """What somebody is told whose rights do not suffice."""
    what = "anything" if target is None else target
    return Refusal(403, FORBIDDEN, f"User:{principal.name} is denied operation {right.name.capitalize()} on {what}")
