"""The API calls of export and import, for every registry that supports IMPORT mode.

Hides the differences between servers: some have no contexts, some do not page, and some do not report which versions
are deleted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Final, Protocol
from urllib.parse import quote

from headrace.registry.domain import SubjectVersion
from headrace.registry.errors import (
    AccessDenied,
    ImportStopped,
    InvalidResponse,
    InvalidSubject,
    ServiceError,
    SubjectLevelNotConfigured,
    SubjectModeNotConfigured,
    SubjectNotFound,
    VersionSoftDeleted,
)
from headrace.registry.names import ALL_CONTEXTS_SCOPE, DEFAULT_CONTEXT
from headrace.registry.transfer.export_file import parse_version_object, reference_object
from headrace.registry.transfer.snapshot import DEFAULT_SCOPE, ExportedVersion, json_text, scope_of_context

UNSUPPORTED_STATUSES: Final = (404, 405)  # for calls that a server does not support
PAGE_VERSIONS: Final = 1000  # versions per request; the API's maximum
Progress = Callable[[int], None]
"""Reports progress. Receives the number of items finished since the last call."""


class ApiCaller(Protocol):
    """The methods of `registry.client.RegistryClient` that export and import use."""

    @property
    def url(self) -> str: ...

    def call(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Mapping[str, Any] | None = None
    ) -> Any: ...


class RemoteRegistry:
    """Calls the API of one registry. The methods raise the errors of `RegistryClient`, and `InvalidResponse`."""

    def __init__(self, client: ApiCaller) -> None:
        self._client = client

    @property
    def url(self) -> str:
        return self._client.url

    def contexts(self) -> tuple[str, ...]:
        """The sorted contexts, including the default one."""
        try:
            names = self._client.call("GET", "/contexts")
        except ServiceError as error:
            if error.status not in UNSUPPORTED_STATUSES:
                raise
            names = []
        with self._checking_response("/contexts"):
            return tuple(sorted({DEFAULT_CONTEXT, *(str(name) for name in names)}))

    def scopes_with_settings(self, contexts: Iterable[str]) -> frozenset[str]:
        """The scopes that have a configuration or mode of their own, also contexts and subjects without versions.

        Only Headrace has this list. For other servers returns the aliases of subjects in the given contexts, which are
        the only subjects without versions that these servers list.
        """
        try:
            names = self._client.call("GET", "/scopes")
        except (ServiceError, AccessDenied) as error:
            if isinstance(error, ServiceError) and error.status not in UNSUPPORTED_STATUSES:
                raise
            names = [name for context in contexts for name in self._aliases(context)]
        with self._checking_response("/scopes"):
            return frozenset(str(name) for name in names)

    def _aliases(self, context: str) -> Iterator[str]:
        query = {"deleted": "true", "latestOnly": "true", "aliases": "true"}
        for item in self._rows(context, query, lambda count: None):
            yield from item.get("aliases") or ()

    def schema_types(self) -> frozenset[str]:
        try:
            names = self._client.call("GET", "/schemas/types")
        except ServiceError as error:
            if error.status not in UNSUPPORTED_STATUSES:
                raise
            names = ["AVRO"]
        with self._checking_response("/schemas/types"):
            return frozenset(str(name) for name in names)

    def versions(self, context: str, progress: Progress = lambda count: None) -> dict[SubjectVersion, ExportedVersion]:
        """Reads the versions of a context with their deleted flags; `progress` receives the number of versions as they
        arrive.

        Compares the lists with and without deleted versions, because servers before 8.0 have no flag in a version.
        """
        all_versions = self._listed(context, True, progress)
        live_versions = self._listed(context, False, lambda count: None) if all_versions else {}
        return {key: replace(version, deleted=key not in live_versions) for key, version in all_versions.items()}

    def _listed(self, context: str, deleted: bool, progress: Progress) -> dict[SubjectVersion, ExportedVersion]:
        query = {"deleted": str(deleted).lower(), "latestOnly": "false"}
        versions = map(parse_version_object, self._rows(context, query, progress))
        with self._checking_response("/schemas"):
            return {version.key: version for version in versions if version.context == context}

    def _rows(self, context: str, query: Mapping[str, str], progress: Progress) -> Iterator[Mapping[str, Any]]:
        """Yields the JSON objects of the versions that `GET /schemas` lists for a context, from all its pages. A server
        without contexts also lists versions of other contexts.

        Args:
            context: the context.
            query: more parameters of the request.
            progress: receives the number of versions of each page.
        """
        prefix = "" if context == DEFAULT_CONTEXT else scope_of_context(context)
        query = {**query, "subjectPrefix": prefix, "limit": str(PAGE_VERSIONS)}
        seen: set[tuple[Any, Any]] = set()
        while True:
            page = self._client.call("GET", "/schemas", query={**query, "offset": str(len(seen))})
            with self._checking_response("/schemas"):
                rows = {(item.get("subject"), item["version"]): item for item in page}
            new_keys = rows.keys() - seen
            # A server without paging sends the same versions again.
            if not new_keys:
                return
            yield from (item for key, item in rows.items() if key in new_keys)
            seen |= new_keys
            progress(len(new_keys))

    def config(self, scope: str) -> str | None:
        """The scope's own configuration as JSON text; None if the scope has none or the server has no such scope."""
        value = self._read_own("config", scope)
        with self._checking_response("/config"):
            return None if value is None else json_text(dict(value)) or "{}"

    def mode(self, scope: str) -> str | None:
        """The scope's own mode, or READONLY_OVERRIDE if the server returns that for every scope. None if the scope has
        none or the server has no such scope."""
        value = self._read_own("mode", scope)
        with self._checking_response("/mode"):
            return None if value is None else str(value["mode"])

    def _read_own(self, resource: str, scope: str) -> Any:
        try:
            return self._client.call("GET", _path(resource, scope))
        except (SubjectLevelNotConfigured, SubjectModeNotConfigured, SubjectNotFound):
            return None
        except InvalidSubject:
            # Older servers have no scope for all contexts.
            if scope != ALL_CONTEXTS_SCOPE:
                raise
            return None
        except ServiceError as error:
            if error.status not in UNSUPPORTED_STATUSES:
                raise
            return None

    def set_config(self, scope: str, changes: Mapping[str, Any] | None) -> None:
        """Changes the configuration of a scope. With `changes` None, removes the scope's whole configuration.

        Args:
            scope: the scope.
            changes: the new values, by the key names of PUT requests.
        """
        if changes is not None:
            self._client.call("PUT", _path("config", scope), body=changes)
        else:
            self._client.call("DELETE", _path("config", scope))

    def set_mode(self, scope: str, mode: str | None, *, force: bool = False) -> None:
        """Sets the mode of a scope. With `mode` None, removes the scope's own mode. `force` permits IMPORT mode for a
        scope with versions."""
        if mode is not None:
            query = {"force": "true"} if force else {}
            self._client.call("PUT", _path("mode", scope), query=query, body={"mode": mode})
        else:
            self._client.call("DELETE", _path("mode", scope))

    def register(self, version: ExportedVersion) -> None:
        """Registers a version with its own number and id.

        Raises:
            ImportStopped: the target assigned another number or id.
        """
        response = self._client.call(
            "POST", f"/subjects/{quote(version.subject, safe='')}/versions", body=_body(version)
        )
        with self._checking_response("/subjects/…/versions"):
            found = response["id"], response.get("version") or version.version
        if found != (version.schema_id, version.version):
            raise ImportStopped(
                f"the target registered {version.subject} version {version.version} with id {version.schema_id} as "
                f"version {found[1]} with id {found[0]}: another client writes to the subject, or its mode is no "
                "longer IMPORT"
            )

    def soft_delete(self, key: SubjectVersion) -> None:
        path = f"/subjects/{quote(key.subject, safe='')}/versions/{key.version}"
        # An earlier call with a lost response may have deleted it.
        with suppress(VersionSoftDeleted):
            self._client.call("DELETE", path)

    @contextmanager
    def _checking_response(self, path: str) -> Iterator[None]:
        try:
            yield
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidResponse(
                f"the response of {self.url} to {path} is not that of a schema registry: {error}; check the URL"
            ) from error


def _path(resource: str, scope: str) -> str:
    return f"/{resource}" if scope == DEFAULT_SCOPE else f"/{resource}/{quote(scope, safe='')}"


def _body(version: ExportedVersion) -> dict[str, Any]:
    body: dict[str, Any] = {
        "schema": version.text,
        "schemaType": version.schema_type,
        "id": version.schema_id,
        "version": version.version,
    }
    if version.references:
        body["references"] = [reference_object(item) for item in version.references]
    if version.metadata:
        body["metadata"] = json.loads(version.metadata)
    if version.rule_set:
        body["ruleSet"] = json.loads(version.rule_set)
    return body
