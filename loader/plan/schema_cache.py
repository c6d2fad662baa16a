"""Caches writer schemas in the directory of the commit log, with the identity of their registry.

    schemas/<id>.avsc       self-contained text, written by put-if-absent and never changed
    schemas/registry.json   the registry's identity, and the ids of texts compared with it; may be lost or old

The identity is an id that shows whether the registry is that of the last run. A registry never assigns an id to a
second schema, so a cached text needs no request. But a registry that was created again or restored from an older copy
may do so, and then it is unknown which of the two schemas a message has. Each cached text is therefore compared with
the registry at least once per registry identity, and a topic that uses a changed id is stopped.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from headrace.avro_schema import AvroSchemaError, normalized_text, parse_schema
from headrace.loader.commit.json_values import canonical, from_json, to_json
from headrace.loader.errors import SchemaReplaced
from headrace.loader.storage.protocols import CommitStorage

logger = logging.getLogger(__name__)

REGISTRY_PATH = "schemas/registry.json"
CONCURRENT_WRITES_MAX = 8


@dataclass(frozen=True, slots=True)
class ComparedSchemas:
    """The content of `registry.json`: the identity of a registry ("" if it has none), and the ids of the cached schema
    texts that were compared with it: that registry has an equal schema, or none with this id."""

    identity: str = ""
    compared: frozenset[int] = frozenset()


class SchemaCache:
    """The writer schemas that are cached in the directory of the commit log, for later runs.

    Args:
        writable: whether files are written; a dry run writes none.
    """

    def __init__(self, storage: CommitStorage, *, writable: bool) -> None:
        self._storage = storage
        self._writable = writable
        self._identity: str | None = None
        self._compared: set[int] = set()
        self._stored = ComparedSchemas()

    def set_identity(self, identity: str) -> None:
        """Sets the identity of the registry of this run, an id that shows whether it is the registry of earlier runs.
        If so, the cached texts that were compared with it then need not be compared again. Without this call, no
        comparison of an earlier run counts."""
        self._stored = self._read()
        self._identity = identity
        self._compared = set(self._stored.compared) if self._stored.identity == identity else set()

    def text(self, schema_id: int) -> str | None:
        content = self._storage.read(_path(schema_id))
        return None if content is None else content.decode()

    def store(self, texts: Mapping[int, str]) -> None:
        """Caches schema texts concurrently, because most of the time is waiting for the disk or the network. Does not
        change cached texts.

        Args:
            texts: the texts, by schema id.

        Raises:
            OSError: the storage failed.
        """

        def put(schema_id: int) -> None:
            if self.text(schema_id) is None:
                self._storage.put_if_absent(_path(schema_id), texts[schema_id].encode())

        if self._writable:
            with ThreadPoolExecutor(CONCURRENT_WRITES_MAX) as pool:
                list(pool.map(put, texts))

    def is_verified(self, schema_id: int) -> bool:
        return schema_id in self._compared

    def compare(self, schema_id: int, text: str) -> None:
        """Compares the cached schema of an id with the registry's, and caches the registry's if there is no cached one.

        Args:
            text: the registry's schema.

        Raises:
            SchemaReplaced: the cached schema differs.
        """
        cached_text = self.text(schema_id)
        if cached_text is None and self._writable:
            self._storage.put_if_absent(_path(schema_id), text.encode())
            cached_text = self.text(schema_id)  # another load may have cached another text first
        if cached_text is not None and not _is_equal_schema(cached_text, text):
            raise self.mark_replaced(schema_id)
        self._compared.add(schema_id)

    def mark_compared(self, schema_id: int) -> None:
        """Marks a cached id as compared although the registry does not have it, so that later runs need not compare it.
        The cached text remains valid."""
        self._compared.add(schema_id)

    def mark_replaced(self, schema_id: int) -> SchemaReplaced:
        """Returns the error for an id with a changed schema. Marks all ids as not compared, so that they are compared
        again later in this run, or in the next one."""
        self._compared.clear()
        return SchemaReplaced(schema_id, self._storage.describe(_path(schema_id)))

    def save(self) -> None:
        """Writes to `registry.json` the ids of cached schemas that were compared with the registry. Does nothing in a
        dry run or if the registry's identity is unknown. A failure is logged."""
        compared_schemas = ComparedSchemas(self._identity or "", frozenset(self._compared))
        if not self._writable or self._identity is None or compared_schemas == self._stored:
            return
        try:
            self._storage.replace(REGISTRY_PATH, canonical(to_json(compared_schemas)) + b"\n")
            self._stored = compared_schemas
        except OSError as error:
            logger.warning(
                "compared_schemas_not_written, later runs compare them with the registry again error=%s", error
            )

    def _read(self) -> ComparedSchemas:
        content = self._storage.read(REGISTRY_PATH)
        try:
            return ComparedSchemas() if content is None else from_json(json.loads(content), ComparedSchemas)
        except ValueError as error:
            logger.warning(
                "cached_comparisons_unusable, all schemas are compared with the registry again path=%s reason=%s",
                REGISTRY_PATH,
                error,
            )
            return ComparedSchemas()


def _is_equal_schema(one: str, other: str) -> bool:
    """Whether two self-contained texts describe the same schema."""
    if one == other:
        return True
    try:
        return normalized_text(parse_schema(one, strict=False)) == normalized_text(parse_schema(other, strict=False))
    except AvroSchemaError:
        return False


def _path(schema_id: int) -> str:
    return f"schemas/{schema_id}.avsc"
