"""Authentication and authorization of requests in the Flask application."""

from __future__ import annotations

from collections.abc import Callable

from flask import Flask, Response, request

from headrace.registry.access.authenticator import RegistryUsersFile
from headrace.registry.access.permissions import Permission, Permissions, Target
from headrace.registry.access.required_permissions import (
    FORBIDDEN,
    NO_CREDENTIALS,
    Denial,
    RequiredPermission,
    ResourceKind,
    authorize,
    forbidden,
    required_permission,
    route_label,
)
from headrace.registry.access.users import Principal
from headrace.registry.api.hooks import CERTIFICATE_KEY, PREFLIGHT_KEY, PREFLIGHT_OK, PRINCIPAL_KEY, UNRESTRICTED
from headrace.registry.api.responses import error_response, query_flag
from headrace.registry.domain import ConfigChange, SchemaRequest
from headrace.registry.errors import AccessDenied
from headrace.registry.names import context_name, resolve_in_context, scope_name, subject_name

CHALLENGE = 'Basic realm="schema registry", charset="UTF-8"'
BEARER_CHALLENGE = 'Bearer realm="schema registry"'
BUSY_RETRY_S = 1


def install(app: Flask, users: RegistryUsersFile) -> None:
    """Authenticates and authorizes every request before the app processes it.

    Args:
        app: the Flask application.
        users: authenticates the requests that the ASGI front has not authenticated.
    """

    def check_request() -> Response | None:
        # Usually the ASGI front has already authenticated the client.
        result = request.environ.get(PRINCIPAL_KEY) or users.authenticate(
            request.headers.get("Authorization"), request.remote_addr or "", request.environ.get(CERTIFICATE_KEY, "")
        )
        if isinstance(result, Denial):
            return _denied(result, users)
        # The front caches responses by principal and logs the user.
        request.environ[PRINCIPAL_KEY] = result
        if request.url_rule is None:
            return None  # Flask returns 404
        required = required_permission(request.method, route_label(request.url_rule.rule))
        denial = _authorize(result, required)
        if denial is not None:
            return _denied(denial, users)
        # Public routes read no body.
        is_preflight = required.resource is not ResourceKind.PUBLIC_INFO and PREFLIGHT_KEY in request.environ
        return Response(status=PREFLIGHT_OK) if is_preflight else None

    def deny(error: AccessDenied) -> Response:
        # Raised later than `check_request`, about subjects that only the request body or the found schema names.
        # Anonymous clients get a challenge.
        name = principal().name
        return _denied(Denial(403, FORBIDDEN, str(error)) if name else NO_CREDENTIALS, users)

    app.before_request(check_request)
    app.register_error_handler(AccessDenied, deny)


def _authorize(principal: Principal, required: RequiredPermission) -> Denial | None:
    needs_admin = required.admin_parameter and query_flag(required.admin_parameter)
    permission = Permission.ADMIN if needs_admin else required.permission
    highest = principal.permissions.highest_everywhere
    if required.resource is ResourceKind.PUBLIC_INFO or (highest is not None and highest >= permission):
        return None
    # The check on any subject comes first: without it, clients could find out which names are valid.
    return authorize(principal, permission, ResourceKind.ANY_SUBJECT, None) or authorize(
        principal, permission, required.resource, _target(required)
    )


def _target(required: RequiredPermission) -> Target | None:
    values = request.view_args or {}
    match required.resource:
        case ResourceKind.SUBJECT:
            return Target.of_subject(subject_name(values["subject"]))
        case ResourceKind.SCOPE:
            return Target.of_scope(scope_name(values["subject"]) if "subject" in values else None)
        case ResourceKind.CONTEXT if "context" in values:
            return Target(context_name(values["context"]))
    return None


def _denied(denial: Denial, users: RegistryUsersFile) -> Response:
    response = error_response(denial.status, denial.error_code, denial.message)
    if denial.status == 401:
        response.headers.add("WWW-Authenticate", CHALLENGE)
        if users.accepts_tokens:
            response.headers.add("WWW-Authenticate", BEARER_CHALLENGE)
    elif denial.status == 429:
        response.headers["Retry-After"] = str(BUSY_RETRY_S)
    return response


def principal() -> Principal:
    found = request.environ.get(PRINCIPAL_KEY, UNRESTRICTED)
    assert isinstance(found, Principal)
    return found


def permissions() -> Permissions:
    return principal().permissions


def may_read(subject: str) -> bool:
    return permissions().allow(Permission.READ, Target.of_subject(subject))


def is_restricted() -> bool:
    """Whether the sender of the current request has no grant that covers all subjects."""
    return permissions().highest_everywhere is None


def require_permissions_in(body: object, resolve_alias: Callable[[str], str]) -> None:
    """Checks the permissions on other subjects that a request body names.

    A schema reveals the schemas that it references, so they must be readable. An alias extends permissions on one
    subject to its target, so it requires admin permission on the target.

    Args:
        body: the parsed body.
        resolve_alias: returns the subject that an alias refers to, or the subject itself.

    Raises:
        AccessDenied: a permission is missing.
        InvalidSubject: the body names an invalid subject.
    """
    if permissions().highest_everywhere is Permission.ADMIN:
        return
    name = (request.view_args or {}).get("subject", "")
    if isinstance(body, SchemaRequest) and body.references:
        # References are relative to the context of the resolved subject.
        subject = resolve_alias(subject_name(name))
        for reference in body.references:
            _require(Permission.READ, resolve_in_context(subject, reference.subject))
    elif isinstance(body, ConfigChange) and body.values.alias:
        _require(Permission.ADMIN, resolve_in_context(scope_name(name) or "", body.values.alias))


def _require(permission: Permission, subject: str) -> None:
    target = Target.of_subject(subject)
    if not permissions().allow(permission, target):
        raise AccessDenied(forbidden(principal(), permission, target).message)
