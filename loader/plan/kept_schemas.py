"""The writer schemas that were met, kept beside the log, and of which registry they are.

    schemas/<id>.avsc       self-contained text, put if absent and never changed
    schemas/registry.json   the registry's identity, and the ids whose texts were compared with what it holds: a hint

One registry never gives an id to another schema, so a kept text needs no asking. But a registry that was made anew, or
put back from an older copy, gives out ids a second time, and then nobody can tell which of the two schemas a message
was written with. So a text is compared with the registry's once per identity, and whoever finds another schema under
an id that is known here stops what uses it.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass

from headrace.avro_schema import AvroSchemaError, normalized_text, parse_schema
from headrace.loader.commit.json_values import canonical, from_json, to_json
from headrace.loader.errors import SchemaReplaced
from headrace.loader.storage.protocols import CommitStorage

logger = logging.getLogger(__name__)

REGISTRY_PATH = "schemas/registry.json"


@dataclass(frozen=True, slots=True)
class ComparedWith:
    """`identity` is the registry's, "" for one that does not say it."""

    identity: str = ""
    compared: frozenset[int] = frozenset()


class KeptSchemas:
    """
    Args:
        keeps: whether anything is written; a dry run leaves no trace.
    """

    def __init__(self, storage: CommitStorage, *, keeps: bool) -> None:
        self._storage = storage
        self._keeps = keeps
        self._identity: str | None = None
        self._compared: set[int] = set()
        self._saved = ComparedWith()

    def use(self, identity: str) -> None:
        """Says which registry the answers of this run come from; until then no text passes for compared."""
        self._saved = self._read()
        self._identity = identity
        self._compared = set(self._saved.compared) if self._saved.identity == identity else set()

    def text(self, schema_id: int) -> str | None:
        content = self._storage.read(_path(schema_id))
        return None if content is None else content.decode()

    def is_compared(self, schema_id: int) -> bool:
        return schema_id in self._compared

    def compare(self, schema_id: int, text: str) -> None:
        """Takes what the registry holds under an id, and keeps it where nothing is.

        Raises:
            SchemaReplaced: another schema is known under this id.
        """
        kept = self.text(schema_id)
        if kept is None and self._keeps:
            self._storage.put_if_absent(_path(schema_id), text.encode())
            kept = self.text(schema_id)  # another load may have been faster, with another text
        if kept is not None and not _is_same(kept, text):
            raise self.replaced(schema_id)
        self._compared.add(schema_id)

    def missed(self, schema_id: int) -> None:
        """Notes that the registry does not have the schema of a kept text, which then stays what it is."""
        self._compared.add(schema_id)

    def replaced(self, schema_id: int) -> SchemaReplaced:
        """The error; all texts are compared again until there is none."""
        self._compared.clear()
        return SchemaReplaced(schema_id, self._storage.describe(_path(schema_id)))

    def save(self) -> None:
        """Leaves the hint of what has been compared."""
        now = ComparedWith(self._identity or "", frozenset(self._compared))
        if not self._keeps or self._identity is None or now == self._saved:
            return
        try:
            self._storage.replace(REGISTRY_PATH, canonical(to_json(now)) + b"\n")
            self._saved = now
        except OSError as error:
            logger.warning("compared_not_written error=%s", error)

    def _read(self) -> ComparedWith:
        content = self._storage.read(REGISTRY_PATH)
        try:
            return ComparedWith() if content is None else from_json(json.loads(content), ComparedWith)
        except ValueError as error:
            logger.warning("compared_ignored reason=%s", error)
            return ComparedWith()


def _is_same(one: str, other: str) -> bool:
    """Whether two self-contained texts say the same; an earlier release may have written it differently."""
    if one == other:
        return True
    try:
        return normalized_text(parse_schema(one, strict=False)) == normalized_text(parse_schema(other, strict=False))
    except AvroSchemaError:
        return False


def _path(schema_id: int) -> str:
    return f"schemas/{schema_id}.avsc"
