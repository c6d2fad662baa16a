"""From an answer of the API to a value or an error, and from values to the body of a request."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from headrace.registry import errors
from headrace.registry.client.connections import Answer
from headrace.registry.domain import SchemaReference
from headrace.registry.errors import CredentialsRefused, RegistryError, ServiceError

T = TypeVar("T")

ERRORS_BY_CODE: Final[Mapping[int, type[RegistryError]]] = {
    40301: errors.AccessRefused,
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
"""The class of each error code: `registry/api/problems.py` read backwards."""


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema as the registry holds it; `subject` and `version` are None when it was asked for by id alone.

    `guid` is "" when the registry does not say it, as those before 8.0 do not.
    """

    schema_id: int
    text: str
    subject: str | None = None
    version: int | None = None
    references: tuple[SchemaReference, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    guid: str = ""


def schema_body(text: str, references: Sequence[SchemaReference], metadata: Mapping[str, str] | None) -> dict[str, Any]:
    """The body that registers, looks up or checks a schema."""
    body: dict[str, Any] = {"schema": text, "schemaType": "AVRO"}
    if references:
        body["references"] = [
            {"name": item.name, "subject": item.subject, "version": item.version} for item in references
        ]
    if metadata is not None:
        body["metadata"] = {"properties": dict(metadata)}
    return body


def registered(answer: Mapping[str, Any]) -> RegisteredSchema:
    """The schema that an answer holds; it must say the id.

    Raises:
        ServiceError: it holds none.
    """
    try:
        references = tuple(
            SchemaReference(item["name"], item["subject"], item["version"]) for item in answer.get("references") or ()
        )
        properties = (answer.get("metadata") or {}).get("properties") or {}
        return RegisteredSchema(
            int(answer["id"]),
            str(answer["schema"]),
            answer.get("subject"),
            answer.get("version"),
            references,
            MappingProxyType(dict(properties)),
            answer.get("guid") or "",
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ServiceError("the answer is not one of a schema registry: it holds no schema", status=200) from error


def field_of(answer: Any, name: str, kind: type[T]) -> T:
    """One value of an answer.

    Raises:
        ServiceError: it is not there, or of another kind.
    """
    value = answer.get(name) if isinstance(answer, Mapping) else None
    if not isinstance(value, kind):
        raise ServiceError(f"the answer is not one of a schema registry: it has no {name!r}", status=200)
    return value


def value_of(
    answer: Answer,
    *,
    shape: type = object,
    subject: str = "",
    version: int | str | None = None,
    schema_id: int | None = None,
) -> Any:
    """The JSON of an answer; None for one without content.

    Args:
        shape: what the value must be: `dict`, `list`, …
        subject, version, schema_id: what was asked about, for the error.

    Raises:
        RegistryError: the error that the answer tells of; `ServiceError` where it is none that this client knows.
    """
    if answer.status == 204 and shape is object:
        return None
    try:
        value = json.loads(answer.body)
    except (ValueError, RecursionError):
        value = None
    if 200 <= answer.status < 300 and value is not None and isinstance(value, shape):
        return value
    if 300 <= answer.status < 400:
        raise _redirected(answer)
    if answer.status == 407:
        raise ServiceError("the proxy asks for other credentials (HTTP 407); give them in HTTP_PROXY", status=407)
    if not isinstance(value, dict) or not isinstance(value.get("error_code"), int):
        raise ServiceError(f"the answer is not one of a schema registry (HTTP {answer.status})", status=answer.status)
    message = str(value.get("message", ""))
    if answer.status == 401:
        detail = f"the registry does not accept the credentials, or misses them: {message}"
        raise CredentialsRefused(detail, status=answer.status, error_code=value["error_code"])
    kind = ERRORS_BY_CODE.get(value["error_code"], errors.AccessRefused if answer.status == 403 else None)
    if kind is None:
        raise ServiceError(message, status=answer.status, error_code=value["error_code"])
    error = kind(message=message)
    error.subject, error.version, error.schema_id = subject, version, schema_id
    raise error


def _redirected(answer: Answer) -> ServiceError:
    """Redirects are not followed: credentials would go to whoever is named, and a POST would turn into a GET."""
    try:
        parts = urlsplit(answer.location)
        place = f" to {parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.scheme and parts.netloc else ""
    except ValueError:
        place = ""
    return ServiceError(
        f"the registry's address redirects{place if place.isprintable() else ''} (HTTP {answer.status}), which is not "
        "followed; give the client the address that answers",
        status=answer.status,
    )
