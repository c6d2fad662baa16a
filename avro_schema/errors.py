"""Errors of schemas and framed messages.

AvroSchemaError
├── SchemaParseError  a text is not an Avro schema; has the position and the expected syntax
└── FramingError      a message has no valid schema id
"""

from __future__ import annotations

from headrace.avro_schema.model import NO_POSITION, Position


class AvroSchemaError(Exception):
    """Root of the errors of this package."""


class SchemaParseError(AvroSchemaError):
    """The text is not a valid Avro schema.

    `message` describes the problem and the expected syntax, `position` its location and `source` the file or subject.
    The text of the error is `source:line:column: message`, in the style of compilers; an unknown source or position is
    left out.
    """

    def __init__(self, message: str, position: Position = NO_POSITION, source: str = "") -> None:
        super().__init__(message, position, source)
        self.message = message
        self.position = position
        self.source = source

    def __str__(self) -> str:
        location = f"{self.position.line}:{self.position.column}: " if self.position.line else ""
        return f"{self.source}:{location or ' '}{self.message}" if self.source else f"{location}{self.message}"


class FramingError(AvroSchemaError):
    """A message value does not follow the wire format, or a schema id is out of range. `reason` is a short code, used
    to count such messages."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message, reason)
        self.message = message
        self.reason = reason

    def __str__(self) -> str:
        return self.message
