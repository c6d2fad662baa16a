"""Parses responses of the API to values and errors, and builds request bodies."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from headrace.registry import errors
from headrace.registry.client.connections import HttpResponse
from headrace.registry.domain import SchemaReference
from headrace.registry.errors import CredentialsRefused, RegistryError, ServiceError

T = TypeVar("T")

ERRORS_BY_CODE: Final[Mapping[int, type[RegistryError]]] = {
    40301: errors.AccessDenied,
    40401: errors.SubjectNotFound,
    40402: errors.VersionNotFound,
    40403: errors.SchemaNotFound,
    40404: errors.SubjectSoftDeleted,
    40405: errors.SubjectNotSoftDeleted,
    40406: errors.VersionSoftDeleted,
    40407: errors.VersionNotSoftDeleted,
    40408: errors.SubjectLevelNotConfigured,
    40409: errors.SubjectModeNotConfigured,
    409: errors.IncompatibleSchema,  # the code of releases up to 8.0.3, and of 8.1.1
    40901: errors.IncompatibleSchema,
    42201: errors.InvalidSchema,
    42202: errors.InvalidVersion,
    42203: errors.InvalidCompatibilityLevel,
    42204: errors.InvalidMode,
    42205: errors.OperationNotPermitted,
    42206: errors.ReferenceExists,
    42207: errors.SchemaIdMismatch,
    42208: errors.InvalidSubject,
    42209: errors.SchemaTooLarge,
    42210: errors.InvalidRuleSet,
    42211: errors.ContextNotEmpty,
    50001: errors.StoreError,
}
"""The exception for each `error_code` of a response: the inverse of `registry/api/problems.py`."""

LOGIN_REMEDY: Final = "correct registry.client_user and registry.client_password, or registry.client_token"


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema in the registry. `subject` and `version` are None for requests by guid, and for requests by id unless
    the request names a subject that has the schema.

    `guid` is "" for registries before 8.0, which do not return it.
    """

    schema_id: int
    text: str
    subject: str | None = None
    version: int | None = None
    references: tuple[SchemaReference, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    guid: str = ""
    schema_type: str = "AVRO"


def schema_body(text: str, references: Sequence[SchemaReference], metadata: Mapping[str, str] | None) -> dict[str, Any]:
    """The body of a request that registers, looks up or checks a schema.

    Args:
        text: the schema as JSON.
        references: the versions that the schema refers to.
        metadata: the properties of the schema's metadata, by name; None omits metadata from the body.
    """
    body: dict[str, Any] = {"schema": text, "schemaType": "AVRO"}
    if references:
        body["references"] = [
            {"name": item.name, "subject": item.subject, "version": item.version} for item in references
        ]
    if metadata is not None:
        body["metadata"] = {"properties": dict(metadata)}
    return body


def parse_registered_schema(response: Mapping[str, Any]) -> RegisteredSchema:
    """The schema in a response, which must include the id.

    Raises:
        ServiceError: the response has no id or schema, or is malformed.
    """
    try:
        references = tuple(
            SchemaReference(item["name"], item["subject"], item["version"]) for item in response.get("references") or ()
        )
        properties = (response.get("metadata") or {}).get("properties") or {}
        return RegisteredSchema(
            int(response["id"]),
            str(response["schema"]),
            response.get("subject"),
            response.get("version"),
            references,
            MappingProxyType(dict(properties)),
            response.get("guid") or "",
            response.get("schemaType") or "AVRO",
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ServiceError(
            "the response is not one of a schema registry: it has no schema; check the URL", status=200
        ) from error


def response_field(response: Any, name: str, kind: type[T]) -> T:
    """Returns the value of the key `name` in the JSON object of a response.

    Raises:
        ServiceError: the value is missing or is not an instance of `kind`.
    """
    value = response.get(name) if isinstance(response, Mapping) else None
    if not isinstance(value, kind):
        raise ServiceError(
            f"the response is not one of a schema registry: it has no {name!r}; check the URL", status=200
        )
    return value


def response_value(
    response: HttpResponse,
    *,
    shape: type = object,
    subject: str = "",
    version: int | str | None = None,
    schema_id: int | None = None,
) -> Any:
    """The JSON value of a response; None for a response with status 204 if any `shape` is allowed.

    Args:
        shape: the required type of the value: `dict`, `list`, …; `object` allows any.
        subject, version, schema_id: taken from the request, for the fields of errors.

    Raises:
        RegistryError: the error in the response, or `ServiceError` for an unknown error and for a response that is not
            one of a registry or has a value of another type.
    """
    if response.status == 204 and shape is object:
        return None
    try:
        value = json.loads(response.body)
    except (ValueError, RecursionError):
        value = None
    if 200 <= response.status < 300 and value is not None and isinstance(value, shape):
        return value
    if 300 <= response.status < 400:
        raise _redirect_error(response)
    if response.status == 407:
        raise ServiceError("the proxy requires other credentials (HTTP 407); set them in HTTP_PROXY", status=407)
    if not isinstance(value, dict) or not isinstance(value.get("error_code"), int):
        _raise_for_status(response.status)
        raise ServiceError(
            f"the response is not one of a schema registry (HTTP {response.status}); check the URL",
            status=response.status,
        )
    message = str(value.get("message", ""))
    if response.status == 401:
        detail = f"the registry requires credentials or rejected them: {message.removesuffix('.')}; {LOGIN_REMEDY}"
        raise CredentialsRefused(detail, status=response.status, error_code=value["error_code"])
    kind = ERRORS_BY_CODE.get(value["error_code"], errors.AccessDenied if response.status == 403 else None)
    if kind is None:
        raise ServiceError(message, status=response.status, error_code=value["error_code"])
    error = kind(message=message)
    error.subject, error.version, error.schema_id = subject, version, schema_id
    raise error


def _raise_for_status(status: int) -> None:
    """Raises the error of a response without the registry's JSON, such as one of a proxy before the registry, if its
    status has a cause of its own."""
    if status == 401:
        detail = f"the registry, or a proxy before it, requires credentials or rejected them (HTTP 401); {LOGIN_REMEDY}"
        raise CredentialsRefused(detail, status=status)
    if status == 403:
        raise errors.AccessDenied(message="the registry, or a proxy before it, denies access (HTTP 403)")
    if status >= 500:
        raise ServiceError(
            f"the registry, or a proxy before it, failed (HTTP {status}); it may be starting or overloaded: see its "
            "log",
            status=status,
        )


def _redirect_error(response: HttpResponse) -> ServiceError:
    """Returns the error for a response that is a redirect. Redirects are not followed: the target would receive the
    credentials, and a POST would become a GET."""
    try:
        parts = urlsplit(response.location)
        target = f" to {parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.scheme and parts.netloc else ""
    except ValueError:
        target = ""
    return ServiceError(
        f"the registry's address redirects{target if target.isprintable() else ''} (HTTP {response.status}), which is "
        "not followed; configure the address that it redirects to",
        status=response.status,
    )
