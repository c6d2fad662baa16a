"""The requests of the registry's API as methods.

Results that new versions do not change are cached: schemas by id or guid, versions by number, lookups and
registrations. Deletions and changes of configuration or mode by the same client clear the cache. Requests that fail
transiently are retried where that is safe; see `transport`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Literal, TypeVar
from urllib.parse import quote

from headrace.avro_schema import Schema, parse_schema
from headrace.registry import errors
from headrace.registry.client.access import Auth, Tls, parse_servers
from headrace.registry.client.cache import Cache
from headrace.registry.client.readiness import ServerReadiness, readiness_of
from headrace.registry.client.responses import (
    RegisteredSchema,
    parse_registered_schema,
    response_field,
    response_value,
    schema_body,
)
from headrace.registry.client.transport import ApiCall, Transport
from headrace.registry.domain import SchemaReference, SubjectVersion

CACHED_MAX = 10_000  # results per client
CACHED_CHARACTERS_MAX = 64 * 1024 * 1024  # in total; a parsed schema counts as `PARSED_WEIGHT` times its text
PARSED_WEIGHT = 20
ENTRY_WEIGHT = 500  # characters that an entry counts as, besides its text
T = TypeVar("T")


class RegistryClient:
    """A thread-safe client of one registry.

    Every method that sends a request raises `RegistryUnavailable` if it gets no response, `CredentialsRefused` or
    `AccessDenied` if access is denied, `ServiceError` if the response is not one of a registry, `StoreError` if the
    registry's database failed, `InvalidSubject` or `InvalidVersion` for an invalid subject or version number, and the
    errors in its own documentation. Subjects may be qualified with their context, as in `:.eu:orders-value`. The
    environment variables `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY` apply.

    Args:
        url: such as `http://127.0.0.1:8081`, several URLs separated by commas, or a sequence. The servers are
            equivalent and the first is preferred. A URL may have a path and basic credentials
            (`https://user:password@host`).
        timeout_s: time limit of a connection attempt and of each wait for a response, in seconds.
        auth: the credentials for servers without a user part in the URL.
        tls: trusted authorities and the client certificate, for HTTPS.

    Raises:
        RegistryUnavailable: a URL or proxy is malformed, or a TLS file cannot be used.
    """

    def __init__(
        self, url: str | Sequence[str], *, timeout_s: float = 10.0, auth: Auth | None = None, tls: Tls | None = None
    ) -> None:
        self._transport = Transport(parse_servers(url, auth), tls=tls, timeout_s=timeout_s)
        self._path_prefix = ""
        self._subject_prefix = ""
        self._cache = Cache(CACHED_MAX, CACHED_CHARACTERS_MAX, _weight)

    @property
    def url(self) -> str:
        """The URLs of the registry's servers, separated by commas, without credentials."""
        return self._transport.url

    def __repr__(self) -> str:
        return f"RegistryClient({self.url!r})"

    def __enter__(self) -> RegistryClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the idle connections. The client remains usable and opens new ones."""
        self._transport.close()

    def in_context(self, context: str) -> RegistryClient:
        """A client of the same registry for the subjects and ids of one context, such as `.eu`.

        It shares the connections and the cache of this client. The subjects that it returns are qualified, as in
        `:.eu:orders-value`.
        """
        name = "." + context.removeprefix(".")
        client = copy.copy(self)  # shares the cache, so that a deletion by either client clears it for both
        client._path_prefix = "" if name == "." else f"/contexts/{_segment(name)}"
        client._subject_prefix = "" if name == "." else f":{name}:"
        return client

    def readiness(self) -> tuple[ServerReadiness, ...]:
        """Checks each server once, without retries; returns the results in the order of the URLs. Raises no error."""
        return readiness_of(self._transport)

    def identity(self) -> str:
        """The registry's id. A registry with a new database has a new id.

        It is "" if the registry returns no id, as old releases do, or denies access to it. The id of a Confluent
        registry consists of its Kafka cluster and its group, so it does not change when its content is lost.
        """
        try:
            response = self._transport.send(ApiCall.of("GET", "/v1/metadata/id"))
            scope = response_field(response_value(response, shape=dict), "scope", dict)
            return json.dumps(response_field(scope, "clusters", dict), sort_keys=True)
        except errors.AccessDenied:
            return ""
        except errors.ServiceError as error:
            if error.status in (200, 404, 405):
                return ""
            raise

    def register(
        self,
        subject: str,
        text: str,
        references: Sequence[SchemaReference] = (),
        metadata: Mapping[str, str] | None = None,
    ) -> RegisteredSchema:
        """Registers a schema under a subject and returns the new version. If the subject already has the schema,
        returns the existing version.

        The result is cached: until this client deletes something or changes a configuration or mode, a repeated call
        sends no request.

        Args:
            subject: the subject.
            text: the schema as JSON.
            references: the versions that define the types which the schema does not define itself.
            metadata: metadata properties; None keeps the metadata of the subject's latest version.

        Raises:
            IncompatibleSchema: the subject's compatibility settings forbid it.
            InvalidSchema: the schema is malformed, or a referenced version does not exist.
            OperationNotPermitted: the subject's mode forbids it.
            SchemaTooLarge: the schema exceeds the limit of the registry.
        """
        body = schema_body(text, references, metadata)
        # Cached, because a registered schema keeps its id. A later deletion must not stop a producer.
        key = ("register", subject, json.dumps(body, sort_keys=True))
        return self._cached(key, lambda: self._register(subject, text, tuple(references), body))

    def _register(
        self, subject: str, text: str, references: tuple[SchemaReference, ...], body: dict[str, Any]
    ) -> RegisteredSchema:
        response = self._call("POST", f"/subjects/{_segment(subject)}/versions", body=body, subject=subject)
        if "version" not in response or "schema" not in response:
            # Registries before 7.5 return only the id.
            return self._look_up_with_id(subject, text, references, response_field(response, "id", int))
        named = subject if _context_prefix(subject) else self._subject_prefix + subject
        return parse_registered_schema({**response, "subject": named})

    def _look_up_with_id(
        self, subject: str, text: str, references: tuple[SchemaReference, ...], schema_id: int
    ) -> RegisteredSchema:
        response = self._call(
            "POST", f"/subjects/{_segment(subject)}", body=schema_body(text, references, None), subject=subject
        )
        return parse_registered_schema({"id": schema_id, **response})

    def lookup(
        self,
        subject: str,
        text: str,
        references: Sequence[SchemaReference] = (),
        *,
        deleted: bool = False,
        normalize: bool = False,
    ) -> RegisteredSchema:
        """The version of a subject that has the given schema.

        Args:
            subject: the subject to search.
            text: the schema as JSON.
            references: the versions of other subjects that the schema refers to.
            deleted: search soft-deleted versions too.
            normalize: normalize the schema before the comparison.

        Raises:
            InvalidSchema: the schema is malformed, or a referenced version does not exist.
            SubjectNotFound: the subject has no versions.
            SchemaNotFound: no version equals the schema.
        """
        body, path = schema_body(text, references, None), f"/subjects/{_segment(subject)}"
        query = {**_deleted(deleted), **({"normalize": "true"} if normalize else {})}
        key = ("lookup", subject, json.dumps(body, sort_keys=True), *sorted(query))
        return self._cached(
            key, lambda: parse_registered_schema(self._call("POST", path, query=query, body=body, subject=subject))
        )

    def schema_by_id(self, schema_id: int, subject: str = "") -> RegisteredSchema:
        """A schema by its id in the default context, or in the context of a subject.

        If a version of `subject` has the schema, the result contains the subject and its newest such version.

        Raises:
            SchemaNotFound: no schema has this id, or `subject` is in another context and has no version with the
                schema.
        """
        query = {"subject": subject} if subject else {}

        def fetch() -> RegisteredSchema:
            response = self._call("GET", f"/schemas/ids/{schema_id}", query=query, schema_id=schema_id)
            return parse_registered_schema({**response, "id": schema_id})

        return self._cached(("id", schema_id, subject), fetch)

    def schema_by_guid(self, guid: str) -> RegisteredSchema:
        """A schema by the guid of its content. Its id is that of the first context with the schema.

        Raises:
            SchemaNotFound: no schema has this guid.
        """

        def fetch() -> RegisteredSchema:
            path = f"/schemas/guids/{_segment(guid)}"
            response = self._call("GET", path)
            ids = self._call("GET", f"{path}/ids", shape=list)
            if not ids:  # deleted between the two requests
                raise errors.SchemaNotFound(message=f"Schema {guid} not found")
            return parse_registered_schema({**response, "id": response_field(ids[0], "id", int), "guid": guid})

        return self._cached(("guid", guid), fetch)

    def usages(self, schema_id: int, subject: str = "") -> list[SubjectVersion]:
        """The subjects and versions that have a schema, without deleted versions.

        Args:
            schema_id: the id in the default context, or in the context of `subject`.
            subject: its context is that of the id.

        Raises:
            SchemaNotFound: no schema has this id.
        """
        path, query = f"/schemas/ids/{schema_id}/versions", {"subject": subject} if subject else {}
        response = self._call("GET", path, shape=list, query=query, schema_id=schema_id)
        return [
            SubjectVersion(response_field(item, "subject", str), response_field(item, "version", int))
            for item in response
        ]

    def parsed(self, schema: RegisteredSchema) -> Schema:
        """Parses the text of a schema, after fetching the schemas that it references.

        Raises:
            SchemaParseError: the registry returned a malformed Avro schema.
            SubjectNotFound, VersionNotFound: a referenced version does not exist.
        """
        key = ("parsed", schema.schema_id, schema.text, schema.references)
        return self._cached(key, lambda: self._parse(schema))

    def _parse(self, schema: RegisteredSchema) -> Schema:
        context = _context_prefix(schema.subject or "")
        referenced = [
            # A reference without a context means the context of the referring schema.
            self.parsed(
                self.version(item.subject if _context_prefix(item.subject) else context + item.subject, item.version)
            )
            for item in schema.references
        ]
        source = schema.subject or f"schema {schema.schema_id}"
        # Some registries return texts as they were sent.
        return parse_schema(schema.text, references=referenced, source=source, strict=False, lenient_json=True)

    def contexts(self) -> list[str]:
        """The names of the registry's contexts, including the default one (`.`)."""
        return list(self._call("GET", "/contexts", shape=list))

    def subjects(self, prefix: str | None = None, deleted: bool = False) -> list[str]:
        """The subjects that have versions, sorted.

        Args:
            prefix: prefix of the names; None means all contexts, "" all subjects of the default context. In a client of
                `in_context` both mean all subjects of its context.
            deleted: include subjects whose versions are all soft-deleted.
        """
        query = {} if prefix is None else {"subjectPrefix": prefix}
        return list(self._call("GET", "/subjects", shape=list, query={**query, **_deleted(deleted)}))

    def versions(self, subject: str, deleted: bool = False) -> list[int]:
        """The version numbers of a subject, ascending; `deleted` includes soft-deleted ones.

        Raises:
            SubjectNotFound: the subject has no versions.
        """
        path = f"/subjects/{_segment(subject)}/versions"
        return list(self._call("GET", path, shape=list, query=_deleted(deleted), subject=subject))

    def version(self, subject: str, version: int | Literal["latest"]) -> RegisteredSchema:
        """One version of a subject, by its number or "latest". A version requested by number may be soft-deleted, and
        is cached; the response to "latest" is not cached.

        Raises:
            SubjectNotFound: the subject has no versions.
            VersionNotFound: the subject has no such version.
        """
        path = f"/subjects/{_segment(subject)}/versions/{version}"

        def fetch(query: Mapping[str, str]) -> RegisteredSchema:
            return parse_registered_schema(self._call("GET", path, query=query, subject=subject, version=version))

        if version == "latest" or version == -1:
            return fetch({})
        return self._cached(("version", subject, version), lambda: fetch({"deleted": "true"}))

    def referenced_by(self, subject: str, version: int | Literal["latest"]) -> list[int]:
        """The ids of the schemas that reference a version, sorted. Schemas with only soft-deleted versions are omitted.

        Raises:
            SubjectNotFound, VersionNotFound: the version does not exist.
        """
        path = f"/subjects/{_segment(subject)}/versions/{version}/referencedby"
        return list(self._call("GET", path, shape=list, subject=subject, version=version))

    def check_compatibility(
        self,
        subject: str,
        text: str,
        references: Sequence[SchemaReference] = (),
        version: int | Literal["latest"] | None = None,
    ) -> tuple[bool, list[str]]:
        """Whether a schema is compatible with a subject, and a message for each incompatibility. A malformed schema is
        not compatible.

        Args:
            subject: the subject.
            text: the schema as JSON.
            references: the versions that define the types which the schema does not define itself.
            version: the only version to check against; None checks against the same versions as a registration would.

        Raises:
            VersionNotFound: the version does not exist.
        """
        suffix = "" if version is None else f"/{version}"
        response = self._call(
            "POST",
            f"/compatibility/subjects/{_segment(subject)}/versions{suffix}",
            query={"verbose": "true"},
            body=schema_body(text, references, None),
            subject=subject,
            version=version,
        )
        return response_field(response, "is_compatible", bool), list(response.get("messages") or ())

    def compatibility(self, subject: str | None = None) -> str:
        """The effective compatibility level of a subject; without a subject, the global level."""
        return response_field(self.config(subject), "compatibilityLevel", str)

    def set_compatibility(self, level: str, subject: str | None = None) -> None:
        """Sets the compatibility level of a subject; without a subject, the global level.

        Raises:
            InvalidCompatibilityLevel: the level does not exist.
            OperationNotPermitted: the subject is read-only.
        """
        self.set_config({"compatibility": level}, subject)

    def config(self, subject: str | None = None, inherited: bool = True) -> dict[str, Any]:
        """The configuration of a subject; without a subject, the global one.

        The result has the keys of the API, such as `compatibilityLevel`, `normalize`, `alias`, `compatibilityGroup` and
        `defaultMetadata`.

        Args:
            subject: the subject; None for the global configuration.
            inherited: include the values that the subject inherits from its context or globally; ignored without a
                subject.

        Raises:
            SubjectLevelNotConfigured: nothing is configured for the subject and `inherited` is False.
        """
        return dict(
            self._call("GET", _scope("config", subject), query=_inherited(inherited, subject), subject=subject or "")
        )

    def set_config(self, changes: Mapping[str, Any], subject: str | None = None) -> None:
        """Changes the configuration of a subject; without a subject, the global one.

        Args:
            changes: new values by key. A key with the value None is removed from the configuration; omitted keys do not
                change. The keys are as in the result of `config`, except `compatibility`, which `config` returns as
                `compatibilityLevel`.
            subject: the subject; None for the global configuration.

        Raises:
            InvalidCompatibilityLevel: the level or the compatibility policy does not exist.
            InvalidRuleSet: the rules are invalid.
            OperationNotPermitted: the subject is read-only.
        """
        self._change("PUT", _scope("config", subject), body=dict(changes), subject=subject or "")

    def delete_config(self, subject: str | None = None) -> None:
        """Removes the configuration of a subject; without a subject, the global one.

        Raises:
            SubjectNotFound: nothing is configured for the subject.
            OperationNotPermitted: the subject is read-only.
        """
        self._change("DELETE", _scope("config", subject), subject=subject or "")

    def mode(self, subject: str | None = None, inherited: bool = True) -> str:
        """The mode of a subject: READWRITE, READONLY, IMPORT, …

        Args:
            subject: the subject; None for the global mode.
            inherited: return the inherited mode if none is set for the subject; ignored without a subject.

        Raises:
            SubjectModeNotConfigured: no mode is set for the subject and `inherited` is False.
        """
        response = self._call(
            "GET", _scope("mode", subject), query=_inherited(inherited, subject), subject=subject or ""
        )
        return response_field(response, "mode", str)

    def set_mode(self, mode: str, subject: str | None = None, force: bool = False) -> None:
        """Sets the mode of a subject; without a subject, the global mode.

        Unless the mode is IMPORT already, setting it without `force` permanently deletes the soft-deleted versions of
        the subject, or of the default context.

        Args:
            mode: READWRITE, READONLY or IMPORT; FORWARD only for the subject `:.__GLOBAL:`, which means all contexts.
            subject: the subject; None for the global mode.
            force: set IMPORT even if there are versions, and delete none.

        Raises:
            InvalidMode: the mode does not exist, or FORWARD is set on another subject.
            OperationNotPermitted: modes cannot be changed, or IMPORT without `force` is set where live versions exist.
            ReferenceExists: IMPORT without `force` cannot delete a version, because a schema elsewhere references it.
        """
        query = {"force": "true"} if force else {}
        self._change("PUT", _scope("mode", subject), query=query, body={"mode": mode}, subject=subject or "")

    def delete_mode(self, subject: str | None = None) -> None:
        """Removes the mode of a subject; without a subject, the global mode.

        Raises:
            SubjectNotFound: no mode is set for the subject.
            OperationNotPermitted: modes cannot be changed.
        """
        self._change("DELETE", _scope("mode", subject), subject=subject or "")

    def delete_subject(self, subject: str, permanent: bool = False) -> list[int]:
        """Deletes a subject and returns the numbers of the deleted versions: the live ones, or with `permanent` all of
        them. `permanent` requires a soft deletion first.

        Raises:
            SubjectNotFound, SubjectSoftDeleted, SubjectNotSoftDeleted, ReferenceExists: see `registry.errors`.
            OperationNotPermitted: the subject is read-only.
        """
        query = {"permanent": "true"} if permanent else {}
        return list(self._change("DELETE", f"/subjects/{_segment(subject)}", shape=list, query=query, subject=subject))

    def delete_version(self, subject: str, version: int | Literal["latest"], permanent: bool = False) -> int:
        """Deletes one version and returns its number. `permanent` requires a soft deletion first.

        Raises:
            SubjectNotFound, VersionNotFound, VersionSoftDeleted, VersionNotSoftDeleted, ReferenceExists: see
                `registry.errors`.
            OperationNotPermitted: the subject is read-only.
        """
        query = {"permanent": "true"} if permanent else {}
        path = f"/subjects/{_segment(subject)}/versions/{version}"
        return int(self._change("DELETE", path, shape=int, query=query, subject=subject, version=version))

    def call(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Mapping[str, Any] | None = None
    ) -> Any:
        """Sends any request of the API and returns the JSON of the response; None for a response with status 204.
        Neither uses nor clears the cache.

        Args:
            method: the HTTP method.
            path: percent-encoded, such as `/subjects/a%2Fb/versions`.
            query: the parameters after `?`, not encoded.
            body: is sent as JSON; None sends no body.
        """
        return self._call(method, path, shape=object, query=query, body=body)

    def _cached(self, key: tuple[Hashable, ...], make: Callable[[], T]) -> T:
        return self._cache.get_or_make((self._path_prefix, *key), make)

    def _change(self, method: str, path: str, *, shape: type = object, **arguments: Any) -> Any:
        """Sends a request that changes the registry, and returns the JSON of the response. Clears the cache, even after
        an error: the server may have executed the request.

        Args:
            method: the HTTP method.
            path: the percent-encoded path.
            shape: the required type of the JSON: `dict`, `list`, …
            arguments: the query, the body, and the fields for errors; see `_call`.
        """
        try:
            return self._call(method, path, shape=shape, **arguments)
        finally:
            self._cache.clear()

    def _call(
        self,
        method: str,
        path: str,
        *,
        shape: type = dict,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        subject: str = "",
        version: int | str | None = None,
        schema_id: int | None = None,
    ) -> Any:
        response = self._transport.send(ApiCall.of(method, self._path_prefix + path, query, body))
        return response_value(response, shape=shape, subject=subject, version=version, schema_id=schema_id)


def _weight(key: Hashable, value: Any) -> int:
    """The weight of a cache entry for the limit of the cache: approximately its number of characters. A value without a
    schema's text is estimated from the texts in its key."""
    key_chars = sum(len(part) for part in key if isinstance(part, str)) if isinstance(key, tuple) else 0
    value_chars = len(value.text) if isinstance(value, RegisteredSchema) else PARSED_WEIGHT * key_chars
    return ENTRY_WEIGHT + key_chars + value_chars


def _segment(text: str) -> str:
    try:
        # HTTP clients and servers would normalize `.` and `..` as path segments.
        return quote(text, safe="") if text not in (".", "..") else text.replace(".", "%2E")
    except UnicodeEncodeError:
        raise errors.InvalidSubject(subject=repr(text)) from None


def _scope(resource: str, subject: str | None) -> str:
    return f"/{resource}" if subject is None else f"/{resource}/{_segment(subject)}"


def _deleted(included: bool) -> dict[str, str]:
    return {"deleted": "true"} if included else {}


def _inherited(included: bool, subject: str | None) -> dict[str, str]:
    return {"defaultToGlobal": "true"} if included and subject is not None else {}


def _context_prefix(subject: str) -> str:
    """The context part of a qualified subject: `:.eu:` of `:.eu:orders-value`; "" for an unqualified subject."""
    if not subject.startswith(":."):
        return ""
    context, colon, _ = subject[1:].partition(":")
    return f":{context}:" if colon else ""
