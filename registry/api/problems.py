"""Maps errors to error responses: HTTP status, error code and message."""

from __future__ import annotations

import logging

from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge

from headrace.registry import errors
from headrace.registry.access.required_permissions import FORBIDDEN
from headrace.registry.api.entities import Profile
from headrace.registry.api.hooks import DEFERRED_KEY
from headrace.registry.api.responses import error_response
from headrace.registry.api.services import services
from headrace.registry.service.compatibility import ComparisonDeferred

logger = logging.getLogger(__name__)

ERROR_CODES: dict[type[errors.RegistryError], tuple[int, int]] = {
    errors.AccessDenied: (403, FORBIDDEN),
    errors.SubjectNotFound: (404, 40401),
    errors.VersionNotFound: (404, 40402),
    errors.SchemaNotFound: (404, 40403),
    errors.SubjectSoftDeleted: (404, 40404),
    errors.SubjectNotSoftDeleted: (404, 40405),
    errors.VersionSoftDeleted: (404, 40406),
    errors.VersionNotSoftDeleted: (404, 40407),
    errors.SubjectLevelNotConfigured: (404, 40408),
    errors.SubjectModeNotConfigured: (404, 40409),
    errors.IncompatibleSchema: (409, 40901),
    errors.InvalidSchema: (422, 42201),
    errors.InvalidVersion: (422, 42202),
    errors.InvalidCompatibilityLevel: (422, 42203),
    errors.InvalidMode: (422, 42204),
    errors.OperationNotPermitted: (422, 42205),
    errors.ReferenceExists: (422, 42206),
    errors.SchemaIdMismatch: (422, 42207),
    errors.InvalidSubject: (422, 42208),
    errors.SchemaTooLarge: (422, 42209),
    errors.ContextNotEmpty: (422, 42211),
    errors.InvalidRuleSet: (422, 42210),
    errors.StoreError: (500, 50001),
}
"""HTTP status and error code of each error that requests can cause. Other errors give 500.
`registry/client/responses.py` has the inverse by code."""


class BadRequest(Exception):
    """A malformed request, or one for an unknown path. `status` is also the error code."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def install(app: Flask) -> None:
    """Converts every error of the app, including Flask's, to an error response of the API."""
    app.register_error_handler(errors.RegistryError, _registry_error)
    app.register_error_handler(BadRequest, _bad_request)
    app.register_error_handler(ComparisonDeferred, _deferred)
    app.register_error_handler(RequestEntityTooLarge, _too_large)
    app.register_error_handler(HTTPException, _http_error)
    app.register_error_handler(Exception, _unexpected)


def _registry_error(error: errors.RegistryError) -> Response:
    status, error_code = next((ERROR_CODES[kind] for kind in type(error).__mro__ if kind in ERROR_CODES), (500, 500))
    if isinstance(error, errors.IncompatibleSchema) and services().profile is Profile.LEAN:
        error_code = 409  # the code in Confluent's releases up to 8.0.3, and in 8.1.1
    return error_response(status, error_code, str(error))


def _bad_request(error: BadRequest) -> Response:
    return error_response(error.status, error.status, str(error))


def _deferred(error: ComparisonDeferred) -> Response:
    # The front runs the comparison and repeats the request; this response is not sent.
    request.environ[DEFERRED_KEY] = error.comparison
    return Response(status=503)


def _too_large(error: RequestEntityTooLarge) -> Response:
    if request.endpoint == "subjects.register":
        return error_response(*ERROR_CODES[errors.SchemaTooLarge], f"{errors.SchemaTooLarge()}: {error.description}")
    return error_response(413, 413, f"HTTP 413 {error.name}: {error.description}")


def _http_error(error: HTTPException) -> Response:
    status = error.code or 500
    response = error_response(status, status, f"HTTP {status} {error.name}")
    for name, value in error.get_headers(request.environ):
        if name in ("Allow", "Retry-After"):
            response.headers[name] = value
    return response


def _unexpected(error: Exception) -> Response:
    logger.exception("request_failed method=%s route=%s", request.method, request.url_rule)
    return error_response(500, 500, "Internal Server Error")
