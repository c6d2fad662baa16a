"""The registry requests of a run. Each request is sent at most once, and requests that are known in advance are sent
concurrently.

After the first request with an inconclusive error (`INCONCLUSIVE_ERRORS`), such as no response, the run sends no more.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from headrace.avro_schema import Schema
from headrace.registry.errors import INCONCLUSIVE_ERRORS, RegistryError, SubjectNotFound

if TYPE_CHECKING:
    from headrace.registry.client import RegisteredSchema

logger = logging.getLogger(__name__)

T_co = TypeVar("T_co", covariant=True)

CONCURRENT_REQUESTS_MAX = 8
"""Concurrent requests. A thousand requests take the time of 125 sequential ones, at little load for the registry."""


class Registry(Protocol):
    """The methods of the registry client that a load's plan needs, from several threads."""

    def identity(self) -> str: ...

    def versions(self, subject: str) -> Sequence[int]: ...

    def version(self, subject: str, version: int) -> RegisteredSchema: ...

    def schema_by_id(self, schema_id: int) -> RegisteredSchema: ...

    def parsed(self, registered: RegisteredSchema) -> Schema: ...


class RegistryRequest(Protocol[T_co]):
    """A request to the registry, as a hashable value: equal requests are sent once. `send` sends it and returns the
    response."""

    def send(self, registry: Registry) -> T_co: ...


class IdentityRequest(NamedTuple):
    """Requests the identity of the registry, an id that shows whether it is the registry of the last run. The response
    is "" if the registry has no identity or denies access to it."""

    def send(self, registry: Registry) -> str:
        return registry.identity()


class VersionsRequest(NamedTuple):
    """Requests the version numbers of a subject, ascending; none if the subject does not exist."""

    subject: str

    def send(self, registry: Registry) -> tuple[int, ...]:
        try:
            return tuple(sorted(registry.versions(self.subject)))
        except SubjectNotFound:
            return ()


class VersionRequest(NamedTuple):
    subject: str
    version: int

    def send(self, registry: Registry) -> tuple[RegisteredSchema, Schema]:
        registered = registry.version(self.subject, self.version)
        return registered, registry.parsed(registered)


class SchemaByIdRequest(NamedTuple):
    schema_id: int

    def send(self, registry: Registry) -> Schema:
        return registry.parsed(registry.schema_by_id(self.schema_id))


class RegistryResponses:
    """The responses of one run. `outage` is the error after which no further requests are sent."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._responses: dict[tuple[str, RegistryRequest[Any]], Any] = {}
        self.outage: RegistryError | None = None

    def prefetch(self, requests: Iterable[RegistryRequest[Any]]) -> None:
        """Sends those of the requests that have not been sent yet, several concurrently, and stores the responses,
        which `fetch` returns. Leaves a single request to `fetch`."""
        unsent = [one for one in dict.fromkeys(requests) if _key(one) not in self._responses]
        if len(unsent) > 1:
            with ThreadPoolExecutor(min(CONCURRENT_REQUESTS_MAX, len(unsent))) as pool:
                list(pool.map(self._send, unsent))

    def fetch(self, request: RegistryRequest[T_co]) -> T_co:
        """Returns the response to the request; sends the request if that has not been done.

        Raises:
            RegistryError, AvroSchemaError: the error of this request, or the outage found by an earlier one.
        """
        if _key(request) not in self._responses:
            self._send(request)
        found = self._responses[_key(request)]
        if isinstance(found, Exception):
            raise found
        response: T_co = found
        return response

    def _send(self, request: RegistryRequest[Any]) -> None:
        found: Any = self.outage
        if found is None:
            try:
                found = request.send(self._registry)
            except INCONCLUSIVE_ERRORS as error:
                if self.outage is None:
                    self.outage = error
                    logger.warning("registry_unavailable error=%s", error)
                found = error
            except Exception as error:  # raised again by `fetch`
                found = error
        self._responses[_key(request)] = found


def _key(request: RegistryRequest[Any]) -> tuple[str, RegistryRequest[Any]]:
    """Returns the key under which the response to a request is stored. It contains the class name of the request,
    because named tuples of different classes with the same members are equal."""
    return type(request).__name__, request
