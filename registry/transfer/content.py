"""When two schemas are the same although two registries may write them differently."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from headrace.avro_schema import AvroSchemaError, Schema, canonical_text, parse_schema
from headrace.registry.domain import SubjectVersion
from headrace.registry.transfer.snapshot import ExportedVersion

DEPTH_MAX = 100  # of references; registries refuse far less


class Contents:
    """What ids stand for, in a form that can be compared between a file and a target."""

    def __init__(
        self,
        in_target: Mapping[SubjectVersion, ExportedVersion],
        in_file: Mapping[SubjectVersion, ExportedVersion],
    ) -> None:
        # What the file does not hold of its references, the target does.
        self._target = _Schemas(in_target)
        self._file = _Schemas({**in_target, **in_file})

    def of_target(self, version: ExportedVersion) -> Content:
        return Content(version, self._target)

    def of_file(self, version: ExportedVersion) -> Content:
        return Content(version, self._file)


@dataclass(frozen=True)
class Content:
    """What a version's id stands for. Not slotted, so that its identity, which needs a parser, is made once.

    Rule sets are not compared: some editions of the registry drop them from what they are given.
    """

    version: ExportedVersion
    schemas: _Schemas

    def equals(self, other: Content) -> bool:
        return self._written == other._written or self.identity == other.identity

    @property
    def _written(self) -> tuple[object, ...]:
        version = self.version
        return version.text, version.schema_type, version.references, version.metadata

    @cached_property
    def identity(self) -> tuple[object, ...]:
        """With the text in Avro's canonical form, which not every registry stores."""
        schema = self.schemas.parsed(self.version) if self.version.schema_type == "AVRO" else None
        return (self.version.text if schema is None else canonical_text(schema), *self._written[1:])


class _Schemas:
    """Versions as values, parsed when they are needed."""

    def __init__(self, versions: Mapping[SubjectVersion, ExportedVersion]) -> None:
        self._versions = versions
        self._parsed: dict[SubjectVersion, Schema | None] = {}

    def parsed(self, version: ExportedVersion, depth: int = DEPTH_MAX) -> Schema | None:
        """None for what cannot be parsed here; its text is then compared as it is."""
        if version.key not in self._parsed:
            self._parsed[version.key] = None  # Also while it is being parsed: references may run in a circle.
            targets = [self._versions.get(key) for key in version.targets]
            referenced = [self.parsed(item, depth - 1) if item and depth else None for item in targets]
            known = [schema for schema in referenced if schema is not None]
            if len(known) == len(referenced):
                with contextlib.suppress(AvroSchemaError):
                    self._parsed[version.key] = parse_schema(version.text, references=known, strict=False)
        return self._parsed[version.key]
