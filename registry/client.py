"""What the other rooms, and applications, use to reach a running registry: standard library only, thread-safe.

Connections are kept alive and shared by the threads of one client. What never changes (a schema by id, a version of a
subject by number, the id that a text was registered with) is kept and not asked for again. Calls that fail for a
passing reason (no connection, a busy or restarting server) are tried again a few times with growing, random pauses;
every call of the API may be repeated safely, since registering a schema twice gives the same answer.
"""

from __future__ import annotations

import http.client
import json
import random
import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from avro_schema import Schema, parse_schema
from registry import errors
from registry.domain import SchemaReference
from registry.errors import RegistryError, RegistryUnavailable, ServiceError

__all__ = ["RegisteredSchema", "RegistryClient", "SchemaReference"]

ATTEMPTS_MAX = 4  # of one call, so that a restarting server is met again but a dead one is soon reported
PAUSE_FIRST_S = 0.1
PAUSE_MAX_S = 2.0  # also of a pause that the server asks for
CACHED_MAX = 10_000  # schemas kept by one client
IDLE_CONNECTIONS_MAX = 8
ANSWER_BYTES_MAX = 256 * 1024 * 1024  # no list or schema is larger; a stray server could send without end
T = TypeVar("T")
CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
RETRIED_STATUSES: Final = frozenset({408, 429, 500, 502, 503, 504})

ERRORS_BY_CODE: Final[Mapping[int, type[RegistryError]]] = {
    40401: errors.SubjectNotFound,
    40402: errors.VersionNotFound,
    40403: errors.SchemaNotFound,
    40404: errors.SubjectSoftDeleted,
    40405: errors.SubjectNotSoftDeleted,
    40406: errors.VersionSoftDeleted,
    40407: errors.VersionNotSoftDeleted,
    40408: errors.SubjectLevelNotConfigured,
    40409: errors.SubjectModeNotConfigured,
    409: errors.IncompatibleSchema,  # the code of registries before 8.2
    40901: errors.IncompatibleSchema,
    42201: errors.InvalidSchema,
    42202: errors.InvalidVersion,
    42203: errors.InvalidCompatibilityLevel,
    42205: errors.OperationNotPermitted,
    42206: errors.ReferenceExists,
    42208: errors.InvalidSubject,
    42209: errors.SchemaTooLarge,
    50001: errors.StoreError,
}


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema as the registry holds it; `subject` and `version` are None when it was asked for by id alone."""

    schema_id: int
    text: str
    subject: str | None = None
    version: int | None = None
    references: tuple[SchemaReference, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


class RegistryClient:
    """A client of one registry.

    Every method raises `RegistryUnavailable` when the registry cannot be reached and the errors of `registry.errors`
    that its own documentation names.

    Args:
        url: such as `http://127.0.0.1:8081`; a path in it is kept.
        timeout_s: of one connection attempt and of each wait for an answer, in seconds.
    """

    def __init__(self, url: str, *, timeout_s: float = 10.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise RegistryUnavailable(url, "expected a URL such as http://127.0.0.1:8081")
        try:
            port = parts.port
        except ValueError:
            raise RegistryUnavailable(url, "its port is not a number between 0 and 65535") from None
        self.url = url.rstrip("/")
        self._base_path = parts.path.rstrip("/")
        self._connections = _Connections(parts.hostname, port, parts.scheme == "https", timeout_s)
        self._cache = _Cache()

    def __enter__(self) -> RegistryClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the idle connections; the client can still be used and then opens new ones."""
        self._connections.close()

    def register(
        self,
        subject: str,
        text: str,
        references: Sequence[SchemaReference] = (),
        metadata: Mapping[str, str] | None = None,
    ) -> RegisteredSchema:
        """Registers a schema, or finds it registered; `metadata` are its properties, None leaves them as they are.

        Raises:
            IncompatibleSchema: the subject's compatibility level forbids it.
            InvalidSchema: it is no Avro schema, or refers to what is not there.
        """
        body = _schema_body(text, references, metadata)
        # Kept: a schema that was registered keeps its id, and what is deleted here must not stop a producer.
        key = ("register", subject, json.dumps(body, sort_keys=True))
        return self._cache.get(key, lambda: self._register(subject, text, tuple(references), body))

    def _register(
        self, subject: str, text: str, references: tuple[SchemaReference, ...], body: dict[str, Any]
    ) -> RegisteredSchema:
        answer = self._call("POST", f"/subjects/{_segment(subject)}/versions", body=body, subject=subject)
        if "version" not in answer or "schema" not in answer:
            # Registries before 7.5 answer with the id alone.
            return self._looked_up(subject, text, references, answer["id"])
        return _registered({**answer, "subject": subject})

    def _looked_up(
        self, subject: str, text: str, references: tuple[SchemaReference, ...], schema_id: int
    ) -> RegisteredSchema:
        answer = self._call(
            "POST", f"/subjects/{_segment(subject)}", body=_schema_body(text, references, None), subject=subject
        )
        return _registered({"id": schema_id, **answer})

    def lookup(self, subject: str, text: str, references: Sequence[SchemaReference] = ()) -> RegisteredSchema:
        """The version of a subject that holds a schema.

        Raises:
            SubjectNotFound: the subject has no versions.
            SchemaNotFound: none of them equals the schema.
        """
        body = _schema_body(text, references, None)
        key = ("lookup", subject, json.dumps(body, sort_keys=True))
        return self._cache.get(
            key, lambda: _registered(self._call("POST", f"/subjects/{_segment(subject)}", body=body, subject=subject))
        )

    def schema_by_id(self, schema_id: int) -> RegisteredSchema:
        """A schema by its global id.

        Raises:
            SchemaNotFound: no schema has this id.
        """
        return self._cache.get(
            ("id", schema_id),
            lambda: _registered(
                {**self._call("GET", f"/schemas/ids/{schema_id}", schema_id=schema_id), "id": schema_id}
            ),
        )

    def parsed(self, registered: RegisteredSchema) -> Schema:
        """The schema as a value, with the schemas it refers to fetched.

        Raises:
            SchemaParseError: the registry holds what is no Avro schema.
        """
        key = ("parsed", registered.schema_id, registered.text)
        return self._cache.get(key, lambda: self._parse(registered))

    def _parse(self, registered: RegisteredSchema) -> Schema:
        referenced = [self.parsed(self.version(item.subject, item.version)) for item in registered.references]
        source = registered.subject or f"schema {registered.schema_id}"
        return parse_schema(registered.text, references=referenced, source=source, strict=False)

    def subjects(self) -> list[str]:
        """The subjects that have versions, sorted."""
        return list(self._call("GET", "/subjects"))

    def versions(self, subject: str) -> list[int]:
        """The version numbers of a subject, ascending.

        Raises:
            SubjectNotFound: it has none.
        """
        return list(self._call("GET", f"/subjects/{_segment(subject)}/versions", subject=subject))

    def version(self, subject: str, version: int | Literal["latest"]) -> RegisteredSchema:
        """One version of a subject. By number it is kept; also a version that was deleted softly is found so.

        Raises:
            SubjectNotFound: the subject has no versions.
            VersionNotFound: it has others.
        """
        path = f"/subjects/{_segment(subject)}/versions/{version}"

        def ask(query: Mapping[str, str]) -> RegisteredSchema:
            return _registered(self._call("GET", path, query=query, subject=subject, version=version))

        if version == "latest" or version == -1:
            return ask({})
        return self._cache.get(("version", subject, version), lambda: ask({"deleted": "true"}))

    def check_compatibility(
        self,
        subject: str,
        text: str,
        references: Sequence[SchemaReference] = (),
        version: int | Literal["latest"] | None = None,
    ) -> tuple[bool, list[str]]:
        """Whether a schema would be accepted (or is compatible with one version), and why not.

        Raises:
            VersionNotFound: there is no such version.
        """
        suffix = "" if version is None else f"/{version}"
        answer = self._call(
            "POST",
            f"/compatibility/subjects/{_segment(subject)}/versions{suffix}",
            query={"verbose": "true"},
            body=_schema_body(text, references, None),
            subject=subject,
            version=version,
        )
        return bool(answer["is_compatible"]), list(answer.get("messages") or ())

    def compatibility(self, subject: str | None = None) -> str:
        """The compatibility level that holds for a subject, or the global one."""
        if subject is None:
            return str(self._call("GET", "/config")["compatibilityLevel"])
        path = f"/config/{_segment(subject)}"
        return str(self._call("GET", path, query={"defaultToGlobal": "true"})["compatibilityLevel"])

    def set_compatibility(self, level: str, subject: str | None = None) -> None:
        """Sets the level of a subject, or the global one.

        Raises:
            InvalidCompatibilityLevel: there is no such level.
        """
        path = "/config" if subject is None else f"/config/{_segment(subject)}"
        self._call("PUT", path, body={"compatibility": level})

    def delete_subject(self, subject: str, permanent: bool = False) -> list[int]:
        """Deletes all versions of a subject and returns them; `permanent` after it was deleted softly.

        Raises:
            SubjectNotFound, SubjectSoftDeleted, SubjectNotSoftDeleted, ReferenceExists: see `registry.errors`.
        """
        query = {"permanent": "true"} if permanent else {}
        deleted = self._call("DELETE", f"/subjects/{_segment(subject)}", query=query, subject=subject)
        self._cache.clear()
        return list(deleted)

    def delete_version(self, subject: str, version: int | Literal["latest"], permanent: bool = False) -> int:
        """Deletes one version and returns its number; `permanent` after it was deleted softly.

        Raises:
            SubjectNotFound, VersionNotFound, VersionSoftDeleted, VersionNotSoftDeleted, ReferenceExists: see
                `registry.errors`.
        """
        query = {"permanent": "true"} if permanent else {}
        path = f"/subjects/{_segment(subject)}/versions/{version}"
        deleted = self._call("DELETE", path, query=query, subject=subject, version=version)
        self._cache.clear()
        return int(deleted)

    def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        subject: str = "",
        version: int | str | None = None,
        schema_id: int | None = None,
    ) -> Any:
        target = self._base_path + path + (f"?{urlencode(query)}" if query else "")
        payload = None if body is None else json.dumps(body).encode()
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                answer = self._connections.exchange(method, target, payload)
            except (OSError, http.client.HTTPException) as error:
                if attempt == ATTEMPTS_MAX:
                    raise RegistryUnavailable(self.url, _reason(error)) from error
                _pause(attempt)
                continue
            if answer.status not in RETRIED_STATUSES or attempt == ATTEMPTS_MAX:
                return _value(answer, subject, version, schema_id)
            _pause(attempt, answer.retry_after_s)
        raise AssertionError("every attempt returns or raises")


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes
    retry_after_s: float | None


class _Connections:
    """Idle connections to one server, handed to one thread at a time."""

    def __init__(self, host: str, port: int | None, secure: bool, timeout_s: float) -> None:
        self._host = host
        self._port = port
        self._tls = ssl.create_default_context() if secure else None
        self._timeout_s = timeout_s
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()

    def exchange(self, method: str, target: str, payload: bytes | None) -> _Answer:
        """One request and its answer; a connection that the server closed while idle is replaced once."""
        connection = self._taken()
        if connection is not None:
            try:
                return self._exchanged(connection, method, target, payload)
            except (http.client.RemoteDisconnected, ConnectionError):
                pass
        return self._exchanged(self._opened(), method, target, payload)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _taken(self) -> http.client.HTTPConnection | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _opened(self) -> http.client.HTTPConnection:
        if self._tls is not None:
            return http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout_s, context=self._tls)
        return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)

    def _exchanged(
        self, connection: http.client.HTTPConnection, method: str, target: str, payload: bytes | None
    ) -> _Answer:
        headers = {"Accept": CONTENT_TYPE, "Confluent-Accept-Unknown-Properties": "true"}
        if payload is not None:
            headers["Content-Type"] = CONTENT_TYPE
        try:
            connection.request(method, target, payload, headers)
            response = connection.getresponse()
            body = response.read(ANSWER_BYTES_MAX + 1)
            if len(body) > ANSWER_BYTES_MAX:
                raise http.client.HTTPException(f"an answer of more than {ANSWER_BYTES_MAX} bytes")
            answer = _Answer(response.status, body, _seconds(response.getheader("Retry-After")))
            keeps = not response.will_close and response.isclosed()
        except BaseException:
            connection.close()
            raise
        self._put_back(connection, keeps)
        return answer

    def _put_back(self, connection: http.client.HTTPConnection, keeps: bool) -> None:
        with self._lock:
            if keeps and len(self._idle) < IDLE_CONNECTIONS_MAX:
                self._idle.append(connection)
                return
        connection.close()


class _Cache:
    """Thread-safe; the least recently used value goes first. Two threads may make the same value once each."""

    def __init__(self) -> None:
        self._values: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                found: T = self._values[key]
                return found
        value = make()
        with self._lock:
            self._values[key] = value
            while len(self._values) > CACHED_MAX:
                self._values.popitem(last=False)
        return value

    def clear(self) -> None:
        with self._lock:
            self._values.clear()


def _segment(subject: str) -> str:
    try:
        return quote(subject, safe="")
    except UnicodeEncodeError:
        raise errors.InvalidSubject(subject=repr(subject)) from None


def _schema_body(
    text: str, references: Sequence[SchemaReference], metadata: Mapping[str, str] | None
) -> dict[str, Any]:
    body: dict[str, Any] = {"schema": text, "schemaType": "AVRO"}
    if references:
        body["references"] = [
            {"name": item.name, "subject": item.subject, "version": item.version} for item in references
        ]
    if metadata is not None:
        body["metadata"] = {"properties": dict(metadata)}
    return body


def _registered(answer: Mapping[str, Any]) -> RegisteredSchema:
    references = tuple(
        SchemaReference(item["name"], item["subject"], item["version"]) for item in answer.get("references") or ()
    )
    properties = (answer.get("metadata") or {}).get("properties") or {}
    return RegisteredSchema(
        answer["id"],
        answer["schema"],
        answer.get("subject"),
        answer.get("version"),
        references,
        MappingProxyType(dict(properties)),
    )


def _value(answer: _Answer, subject: str, version: int | str | None, schema_id: int | None) -> Any:
    try:
        value = json.loads(answer.body)
    except ValueError:
        value = None
    if 200 <= answer.status < 300 and value is not None:
        return value
    if not isinstance(value, dict) or not isinstance(value.get("error_code"), int):
        raise ServiceError(f"the answer is not one of a schema registry (HTTP {answer.status})", status=answer.status)
    message = str(value.get("message", ""))
    kind = ERRORS_BY_CODE.get(value["error_code"])
    if kind is None:
        raise ServiceError(message, status=answer.status, error_code=value["error_code"])
    error = kind(message=message)
    error.subject, error.version, error.schema_id = subject, version, schema_id
    raise error


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isascii() and text.isdigit() else None


def _pause(attempt: int, asked_s: float | None = None) -> None:
    # Random, so that clients that failed together do not come back together.
    wanted_s = PAUSE_FIRST_S * 2 ** (attempt - 1) * random.uniform(0.5, 1.5)  # noqa: S311  (no secret)
    time.sleep(min(PAUSE_MAX_S, max(wanted_s, asked_s or 0.0)))


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
