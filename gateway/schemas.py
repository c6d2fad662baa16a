"""Finds the schema of keys and values in the registry, by id, version or text, and caches it with its encoder."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from headrace.avro_codec.from_json import EncodeJson, compile_from_json
from headrace.avro_schema import AvroSchemaError, NamedType, Reference, frame, parse_schema
from headrace.gateway.errors import GatewayError, Kind
from headrace.registry.client import RegisteredSchema, RegistryClient
from headrace.registry.errors import (
    AccessDenied,
    IncompatibleSchema,
    InvalidSchema,
    RegistryError,
    SchemaNotFound,
    SubjectNotFound,
    VersionNotFound,
)

SCHEMAS_MAX: Final = 10_000
LATEST_S: Final = 60.0
"""How long the latest version of a subject stays cached."""
REGISTRY_THREADS: Final = 8
RETRY_AFTER_S: Final = 5

_NOT_FOUND: Final = (SubjectNotFound, VersionNotFound, SchemaNotFound)
_REFUSED: Final = (InvalidSchema, IncompatibleSchema, AvroSchemaError)


@dataclass(frozen=True, slots=True)
class SchemaChoice:
    """How a request names a schema: by `schema_id`, `version` or `text`; without them, the latest version."""

    subject: str
    schema_id: int | None = None
    version: int | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class ResolvedSchema:
    """A registered schema. `encode` returns the Avro binary of a JSON value, `prefix` precedes it in messages."""

    subject: str
    schema_id: int
    version: int | None
    prefix: bytes
    encode: EncodeJson


class Schemas:
    """Finds and caches schemas for the coroutines of one event loop."""

    def __init__(self, registry: RegistryClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self._clock = clock
        self._found: OrderedDict[SchemaChoice, tuple[asyncio.Future[ResolvedSchema], float]] = OrderedDict()
        self._names: dict[tuple[int | None, str | None], str] = {}
        self._threads = ThreadPoolExecutor(REGISTRY_THREADS, "headrace-gateway-registry")

    async def type_name(self, choice: SchemaChoice) -> str:
        """Returns the full name of the type of a schema that is named by its id or text, for subjects by record name.

        Raises:
            GatewayError: there is no such schema, its type has no name, or the registry gives no usable response.
        """
        key = choice.schema_id, choice.text
        if key not in self._names:
            found = await asyncio.get_running_loop().run_in_executor(self._threads, self._type_name, choice)
            if len(self._names) >= SCHEMAS_MAX:
                self._names.clear()
            self._names[key] = found
        return self._names[key]

    def _type_name(self, choice: SchemaChoice) -> str:
        with _translated_errors(choice):
            if choice.schema_id is None:
                schema = parse_schema(choice.text or "")
            else:
                schema = self._registry.parsed(self._registry.schema_by_id(choice.schema_id))
        if not isinstance(schema.root, NamedType | Reference):
            raise GatewayError(Kind.INVALID_SCHEMA, "a schema without a name has no subject by record name")
        return str(schema.root.name)

    async def find(self, choice: SchemaChoice) -> ResolvedSchema:
        """Returns the schema that a request names. Registers a text that its subject does not have.

        Raises:
            GatewayError: there is no such schema, the registry refuses it, or gives no usable response.
        """
        cached = self._found.get(choice)
        if cached is not None and self._clock() < cached[1]:
            self._found.move_to_end(choice)
            return await asyncio.shield(cached[0])
        is_latest = choice.schema_id is None and choice.version is None and choice.text is None
        expires = self._clock() + LATEST_S if is_latest else float("inf")
        request = asyncio.get_running_loop().run_in_executor(self._threads, self._fetch, choice)
        self._found[choice] = request, expires
        if len(self._found) > SCHEMAS_MAX:
            self._found.popitem(last=False)
        try:
            return await asyncio.shield(request)
        except GatewayError:
            if self._found.get(choice, (None,))[0] is request:
                del self._found[choice]
            raise

    def _fetch(self, choice: SchemaChoice) -> ResolvedSchema:
        with _translated_errors(choice):
            registered = self._ask(choice)
            encode = compile_from_json(self._registry.parsed(registered))
        return ResolvedSchema(
            choice.subject, registered.schema_id, registered.version, frame(registered.schema_id, b""), encode
        )

    def _ask(self, choice: SchemaChoice) -> RegisteredSchema:
        if choice.schema_id is not None:
            found = self._registry.schema_by_id(choice.schema_id, choice.subject)
            if found.subject is None:
                raise SchemaNotFound(
                    schema_id=choice.schema_id, message=f"subject {choice.subject} has no version with this id"
                )
            return found
        if choice.text is not None:
            return self._registry.register(choice.subject, choice.text)
        return self._registry.version(choice.subject, "latest" if choice.version is None else choice.version)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._registry.close()


@contextlib.contextmanager
def _translated_errors(choice: SchemaChoice) -> Iterator[None]:
    try:
        yield
    except _NOT_FOUND as error:
        raise GatewayError(Kind.INVALID_SCHEMA, f"{_described(choice)} does not exist: {error}") from error
    except _REFUSED as error:
        raise GatewayError(Kind.INVALID_SCHEMA, f"{_described(choice)} is refused: {error}") from error
    except AccessDenied as error:
        raise GatewayError(Kind.NOT_AUTHORIZED, f"{_described(choice)}: {error}") from error
    except RegistryError as error:
        raise GatewayError(
            Kind.REGISTRY_UNAVAILABLE, f"{_described(choice)}: {error}", retry_after_s=RETRY_AFTER_S
        ) from error


def _described(choice: SchemaChoice) -> str:
    if not choice.subject:
        return "the schema" if choice.schema_id is None else f"schema id {choice.schema_id}"
    if choice.schema_id is not None:
        return f"schema id {choice.schema_id} of subject {choice.subject}"
    if choice.text is not None:
        return f"the schema for subject {choice.subject}"
    version: Any = "the latest version" if choice.version is None else f"version {choice.version}"
    return f"{version} of subject {choice.subject}"
