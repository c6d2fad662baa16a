"""The calls of the registry's API, as methods.

What never changes (a schema by id, a version of a subject by number, the id that a text was registered with) is kept
and not asked for again. Every call that fails for a passing reason is made again where that is safe; `transport` says
when.
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
from headrace.registry.client.answers import RegisteredSchema, field_of, registered, schema_body, value_of
from headrace.registry.client.cache import Cache
from headrace.registry.client.transport import Call, Transport
from headrace.registry.domain import SchemaReference, SubjectVersion

CACHED_MAX = 10_000  # answers kept by one client
CACHED_CHARACTERS_MAX = 64 * 1024 * 1024  # of them; a parsed schema counts as `PARSED_WEIGHT` times its text
PARSED_WEIGHT = 20
ENTRY_WEIGHT = 500  # of an entry without its text
T = TypeVar("T")


class RegistryClient:
    """A client of one registry, which threads may share.

    Every method raises `RegistryUnavailable` when the registry cannot be reached, `ServiceError` for an answer that is
    none of a registry or a refused access, and the errors of `registry.errors` that its own documentation names.
    Subjects may name their context, as in `:.eu:orders-value`. Proxies are those of `HTTP_PROXY`, `HTTPS_PROXY` and
    `NO_PROXY` in the environment.

    Args:
        url: such as `http://127.0.0.1:8081`, or several joined by commas, or a sequence: equal servers, the first
            preferred. A path is kept. A user part (`https://user:password@host`) holds basic credentials.
        timeout_s: of one connection attempt and of each wait for an answer, in seconds.
        auth: `BasicAuth` or `BearerAuth`, for the servers whose URL has no user part.
        tls: authorities to trust and the certificate to show, on https.

    Raises:
        RegistryUnavailable: a URL or proxy that is none, or a TLS file that cannot be used.
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
        """The registry's addresses, without credentials."""
        return self._transport.url

    def __repr__(self) -> str:
        return f"RegistryClient({self.url!r})"

    def __enter__(self) -> RegistryClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the idle connections; the client can still be used and then opens new ones."""
        self._transport.close()

    def in_context(self, context: str) -> RegistryClient:
        """A client of the same registry whose subjects and ids are those of one context, such as `.eu`.

        It shares the connections of this one. Names that it returns are qualified, as in `:.eu:orders-value`.
        """
        name = "." + context.removeprefix(".")
        client = copy.copy(self)  # the cache too, so that what one deletes the other forgets
        client._path_prefix = "" if name == "." else f"/contexts/{_segment(name)}"
        client._subject_prefix = "" if name == "." else f":{name}:"
        return client

    def identity(self) -> str:
        """Which registry this is, as it says itself: one that was made anew is another.

        "" where it does not say, as those of old releases do not. A Confluent registry names its Kafka cluster and its
        group, and says nothing of what was lost there.
        """
        try:
            answer = self._transport.answer(Call.of("GET", "/v1/metadata/id"))
            scope = field_of(value_of(answer, shape=dict), "scope", dict)
            return json.dumps(field_of(scope, "clusters", dict), sort_keys=True)
        except errors.AccessRefused:
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
        """Registers a schema, or finds it registered; `metadata` are its properties, None leaves them as they are.

        Raises:
            IncompatibleSchema: the subject's compatibility level forbids it.
            InvalidSchema: it is no Avro schema, or refers to what is not there.
        """
        body = schema_body(text, references, metadata)
        # Kept: a schema that was registered keeps its id, and what is deleted here must not stop a producer.
        key = ("register", subject, json.dumps(body, sort_keys=True))
        return self._kept(key, lambda: self._register(subject, text, tuple(references), body))

    def _register(
        self, subject: str, text: str, references: tuple[SchemaReference, ...], body: dict[str, Any]
    ) -> RegisteredSchema:
        answer = self._call("POST", f"/subjects/{_segment(subject)}/versions", body=body, subject=subject)
        if "version" not in answer or "schema" not in answer:
            # Registries before 7.5 answer with the id alone.
            return self._looked_up(subject, text, references, field_of(answer, "id", int))
        named = subject if _context_prefix(subject) else self._subject_prefix + subject
        return registered({**answer, "subject": named})

    def _looked_up(
        self, subject: str, text: str, references: tuple[SchemaReference, ...], schema_id: int
    ) -> RegisteredSchema:
        answer = self._call(
            "POST", f"/subjects/{_segment(subject)}", body=schema_body(text, references, None), subject=subject
        )
        return registered({"id": schema_id, **answer})

    def lookup(self, subject: str, text: str, references: Sequence[SchemaReference] = ()) -> RegisteredSchema:
        """The version of a subject that holds a schema.

        Raises:
            SubjectNotFound: the subject has no versions.
            SchemaNotFound: none of them equals the schema.
        """
        body = schema_body(text, references, None)
        key = ("lookup", subject, json.dumps(body, sort_keys=True))
        return self._kept(
            key, lambda: registered(self._call("POST", f"/subjects/{_segment(subject)}", body=body, subject=subject))
        )

    def schema_by_id(self, schema_id: int, subject: str = "") -> RegisteredSchema:
        """A schema by its id in the default context, or in the context of a subject.

        With `subject` the answer names that subject and its version, where it holds the schema.

        Raises:
            SchemaNotFound: no schema has this id.
        """
        query = {"subject": subject} if subject else {}

        def ask() -> RegisteredSchema:
            answer = self._call("GET", f"/schemas/ids/{schema_id}", query=query, schema_id=schema_id)
            return registered({**answer, "id": schema_id})

        return self._kept(("id", schema_id, subject), ask)

    def schema_by_guid(self, guid: str) -> RegisteredSchema:
        """A schema by the guid of its content; its id is the one in the first context that holds it.

        Raises:
            SchemaNotFound: no schema has this guid.
        """

        def ask() -> RegisteredSchema:
            path = f"/schemas/guids/{_segment(guid)}"
            answer = self._call("GET", path)
            ids = self._call("GET", f"{path}/ids", shape=list)
            if not ids:  # deleted between the two questions
                raise errors.SchemaNotFound(message=f"Schema {guid} not found")
            return registered({**answer, "id": field_of(ids[0], "id", int), "guid": guid})

        return self._kept(("guid", guid), ask)

    def usages(self, schema_id: int) -> list[SubjectVersion]:
        """The versions that hold a schema and are not deleted.

        Raises:
            SchemaNotFound: no schema has this id.
        """
        answer = self._call("GET", f"/schemas/ids/{schema_id}/versions", shape=list, schema_id=schema_id)
        return [SubjectVersion(field_of(item, "subject", str), field_of(item, "version", int)) for item in answer]

    def parsed(self, schema: RegisteredSchema) -> Schema:
        """The schema as a value, with the schemas it refers to fetched.

        Raises:
            SchemaParseError: the registry holds what is no Avro schema.
        """
        key = ("parsed", schema.schema_id, schema.text, schema.references)
        return self._kept(key, lambda: self._parse(schema))

    def _parse(self, schema: RegisteredSchema) -> Schema:
        context = _context_prefix(schema.subject or "")
        referenced = [
            # A reference means the context of the schema that holds it, unless it names one.
            self.parsed(
                self.version(item.subject if _context_prefix(item.subject) else context + item.subject, item.version)
            )
            for item in schema.references
        ]
        source = schema.subject or f"schema {schema.schema_id}"
        return parse_schema(schema.text, references=referenced, source=source, strict=False)

    def contexts(self) -> list[str]:
        """The contexts, the default one (`.`) among them."""
        return list(self._call("GET", "/contexts", shape=list))

    def subjects(self, prefix: str | None = None, deleted: bool = False) -> list[str]:
        """The subjects that have versions, sorted.

        Args:
            prefix: of the names; None: all names in all contexts, "": all in the default context.
            deleted: also those of which every version is deleted softly.
        """
        query = {} if prefix is None else {"subjectPrefix": prefix}
        return list(self._call("GET", "/subjects", shape=list, query={**query, **_deleted(deleted)}))

    def versions(self, subject: str, deleted: bool = False) -> list[int]:
        """The version numbers of a subject, ascending; with `deleted` also those deleted softly.

        Raises:
            SubjectNotFound: it has none.
        """
        path = f"/subjects/{_segment(subject)}/versions"
        return list(self._call("GET", path, shape=list, query=_deleted(deleted), subject=subject))

    def version(self, subject: str, version: int | Literal["latest"]) -> RegisteredSchema:
        """One version of a subject. By number it is kept; also a version that was deleted softly is found so.

        Raises:
            SubjectNotFound: the subject has no versions.
            VersionNotFound: it has others.
        """
        path = f"/subjects/{_segment(subject)}/versions/{version}"

        def ask(query: Mapping[str, str]) -> RegisteredSchema:
            return registered(self._call("GET", path, query=query, subject=subject, version=version))

        if version == "latest" or version == -1:
            return ask({})
        return self._kept(("version", subject, version), lambda: ask({"deleted": "true"}))

    def referenced_by(self, subject: str, version: int | Literal["latest"]) -> list[int]:
        """The ids of the schemas that refer to a version, sorted.

        Raises:
            SubjectNotFound, VersionNotFound: there is no such version.
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
        """Whether a schema would be accepted (or is compatible with one version), and why not.

        Raises:
            VersionNotFound: there is no such version.
        """
        suffix = "" if version is None else f"/{version}"
        answer = self._call(
            "POST",
            f"/compatibility/subjects/{_segment(subject)}/versions{suffix}",
            query={"verbose": "true"},
            body=schema_body(text, references, None),
            subject=subject,
            version=version,
        )
        return field_of(answer, "is_compatible", bool), list(answer.get("messages") or ())

    def compatibility(self, subject: str | None = None) -> str:
        """The compatibility level that holds for a subject, or the global one."""
        return field_of(self.config(subject), "compatibilityLevel", str)

    def set_compatibility(self, level: str, subject: str | None = None) -> None:
        """Sets the level of a subject, or the global one.

        Raises:
            InvalidCompatibilityLevel: there is no such level.
        """
        self.set_config({"compatibility": level}, subject)

    def config(self, subject: str | None = None, inherited: bool = True) -> dict[str, Any]:
        """What is configured for a subject, or globally, under the names of the API (`compatibilityLevel`, `normalize`,
        `alias`, `compatibilityGroup`, `defaultMetadata`, …).

        Raises:
            SubjectLevelNotConfigured: the subject has no configuration of its own and `inherited` is False.
        """
        return dict(
            self._call("GET", _scope("config", subject), query=_inherited(inherited, subject), subject=subject or "")
        )

    def set_config(self, changes: Mapping[str, Any], subject: str | None = None) -> None:
        """Changes what is configured; the level is called `compatibility` here, None clears a value, and what is not
        named stays.

        Raises:
            InvalidCompatibilityLevel: there is no such level.
            OperationNotPermitted: the subject is read-only.
        """
        self._change("PUT", _scope("config", subject), body=dict(changes), subject=subject or "")

    def delete_config(self, subject: str | None = None) -> None:
        """Removes what is configured for a subject, or globally.

        Raises:
            SubjectNotFound: nothing was configured for it.
        """
        self._change("DELETE", _scope("config", subject), subject=subject or "")

    def mode(self, subject: str | None = None, inherited: bool = True) -> str:
        """The mode of a subject, or the global one: READWRITE, READONLY, IMPORT, …

        Raises:
            SubjectModeNotConfigured: the subject has no mode of its own and `inherited` is False.
        """
        answer = self._call("GET", _scope("mode", subject), query=_inherited(inherited, subject), subject=subject or "")
        return field_of(answer, "mode", str)

    def set_mode(self, mode: str, subject: str | None = None, force: bool = False) -> None:
        """Sets the mode of a subject, or the global one.

        Args:
            force: IMPORT also where subjects exist, which it then may overwrite.

        Raises:
            OperationNotPermitted: it cannot be set now.
        """
        query = {"force": "true"} if force else {}
        self._change("PUT", _scope("mode", subject), query=query, body={"mode": mode}, subject=subject or "")

    def delete_mode(self, subject: str | None = None) -> None:
        """Removes the mode of a subject, or the global one.

        Raises:
            SubjectNotFound: it had none of its own.
        """
        self._change("DELETE", _scope("mode", subject), subject=subject or "")

    def delete_subject(self, subject: str, permanent: bool = False) -> list[int]:
        """Deletes all versions of a subject and returns them; `permanent` after it was deleted softly.

        Raises:
            SubjectNotFound, SubjectSoftDeleted, SubjectNotSoftDeleted, ReferenceExists: see `registry.errors`.
        """
        query = {"permanent": "true"} if permanent else {}
        return list(self._change("DELETE", f"/subjects/{_segment(subject)}", shape=list, query=query, subject=subject))

    def delete_version(self, subject: str, version: int | Literal["latest"], permanent: bool = False) -> int:
        """Deletes one version and returns its number; `permanent` after it was deleted softly.

        Raises:
            SubjectNotFound, VersionNotFound, VersionSoftDeleted, VersionNotSoftDeleted, ReferenceExists: see
                `registry.errors`.
        """
        query = {"permanent": "true"} if permanent else {}
        path = f"/subjects/{_segment(subject)}/versions/{version}"
        return int(self._change("DELETE", path, shape=int, query=query, subject=subject, version=version))

    def call(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Mapping[str, Any] | None = None
    ) -> Any:
        """Any call of the API, for what has no method here; the JSON of the answer, which is kept nowhere.

        Args:
            path: percent-encoded, such as `/subjects/a%2Fb/versions`.
        """
        return self._call(method, path, shape=object, query=query, body=body)

    def _kept(self, key: tuple[Hashable, ...], make: Callable[[], T]) -> T:
        return self._cache.get((self._path_prefix, *key), make)

    def _change(self, method: str, path: str, *, shape: type = object, **about: Any) -> Any:
        """A call after which something that was kept may be wrong, also when it failed half-way."""
        try:
            return self._call(method, path, shape=shape, **about)
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
        answer = self._transport.answer(Call.of(method, self._path_prefix + path, query, body))
        return value_of(answer, shape=shape, subject=subject, version=version, schema_id=schema_id)


def _weight(key: Hashable, value: Any) -> int:
    """Characters that an entry stands for, roughly."""
    texts = sum(len(part) for part in key if isinstance(part, str)) if isinstance(key, tuple) else 0
    held = len(value.text) if isinstance(value, RegisteredSchema) else PARSED_WEIGHT * texts
    return ENTRY_WEIGHT + texts + held


def _segment(text: str) -> str:
    try:
        # A path is normalized on its way: as they are, `.` and `..` would be steps in it.
        return quote(text, safe="") if text not in (".", "..") else text.replace(".", "%2E")
    except UnicodeEncodeError:
        raise errors.InvalidSubject(subject=repr(text)) from None


def _scope(resource: str, subject: str | None) -> str:
    return f"/{resource}" if subject is None else f"/{resource}/{_segment(subject)}"


def _deleted(wanted: bool) -> dict[str, str]:
    return {"deleted": "true"} if wanted else {}


def _inherited(wanted: bool, subject: str | None) -> dict[str, str]:
    return {"defaultToGlobal": "true"} if wanted and subject is not None else {}


def _context_prefix(subject: str) -> str:
    """`:.eu:` of `:.eu:orders-value`; "" where no context is named."""
    if not subject.startswith(":."):
        return ""
    context, colon, _ = subject[1:].partition(":")
    return f":{context}:" if colon else ""
