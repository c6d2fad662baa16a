"""Returns stored schemas in the format that a client requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from headrace.registry.domain import SchemaReference, StoredSchema
from headrace.registry.names import qualified, resolve_in_context
from headrace.registry.service.schema_parser import SchemaParser
from headrace.registry.storage.database import Database
from headrace.registry.storage.repository import Repository
from headrace.registry.tags import TaggedEntity, entities_with

QUALIFIED: Final = "qualified"


@dataclass(frozen=True, slots=True)
class PresentationOptions:
    """The requested format of the schema's text, the requested format of the subjects in references, and the tags to
    find."""

    text_format: str = ""
    reference_format: str = ""
    tags: tuple[str, ...] = ()

    @property
    def is_plain(self) -> bool:
        return not (self.text_format or self.reference_format or self.tags)


@dataclass(frozen=True, slots=True)
class PresentedSchema:
    """A schema for a response: its text and references (None: as stored), and its records and fields that have the
    requested tags."""

    text: str | None = None
    references: tuple[SchemaReference, ...] | None = None
    tagged: Sequence[TaggedEntity] = ()


PLAIN: Final = PresentedSchema()


class Presentation:
    def __init__(self, database: Database, parser: SchemaParser) -> None:
        self._database = database
        self._parser = parser

    def present(self, stored: StoredSchema, options: PresentationOptions) -> PresentedSchema:
        """Returns the parts of a stored schema that the requested formats change, and its records and fields with the
        requested tags. An unknown format changes nothing.

        Args:
            stored: the schema.
            options: the requested formats and tags.

        Raises:
            InvalidSchema: the schema cannot be parsed with its references.
        """
        if options.is_plain:
            return PLAIN

        def read(repository: Repository) -> PresentedSchema:
            return PresentedSchema(
                self._parser.format_text(repository, stored, options.text_format),
                _qualified(stored) if options.reference_format.lower() == QUALIFIED else None,
                entities_with(self._parser.parse_stored(repository, stored), options.tags) if options.tags else (),
            )

        return self._database.read(read)


def _qualified(stored: StoredSchema) -> tuple[SchemaReference, ...]:
    parent = qualified(stored.context, "")
    return tuple(
        replace(reference, subject=resolve_in_context(parent, reference.subject))
        for reference in stored.content.references
    )
