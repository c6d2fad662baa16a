"""How a stored schema is shown when a client asks for more, or for other, than what is stored."""

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
    """What a client asks for: a format of the text, one of the references' subjects, and tags to find."""

    text_format: str = ""
    reference_format: str = ""
    tags: tuple[str, ...] = ()

    @property
    def is_plain(self) -> bool:
        return not (self.text_format or self.reference_format or self.tags)


@dataclass(frozen=True, slots=True)
class PresentedSchema:
    """What is shown in place of a schema's own text and references (None: those), and which tags were found in it."""

    text: str | None = None
    references: tuple[SchemaReference, ...] | None = None
    tagged: Sequence[TaggedEntity] = ()


PLAIN: Final = PresentedSchema()


class Presentation:
    def __init__(self, database: Database, parser: SchemaParser) -> None:
        self._database = database
        self._parser = parser

    def shown(self, stored: StoredSchema, wish: PresentationOptions) -> PresentedSchema:
        """A schema as it is wished; formats that there are not change nothing.

        Raises:
            InvalidSchema: it cannot be read together with what it refers to.
        """
        if wish.is_plain:
            return PLAIN

        def read(repository: Repository) -> PresentedSchema:
            return PresentedSchema(
                self._parser.formatted(repository, stored, wish.text_format),
                _qualified(stored) if wish.reference_format.lower() == QUALIFIED else None,
                entities_with(self._parser.parsed(repository, stored), wish.tags) if wish.tags else (),
            )

        return self._database.read(read)


def _qualified(stored: StoredSchema) -> tuple[SchemaReference, ...]:
    parent = qualified(stored.context, "")
    return tuple(
        replace(reference, subject=resolve_in_context(parent, reference.subject))
        for reference in stored.content.references
    )
