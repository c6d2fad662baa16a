"""Errors of schema comparison. Incompatibility is not an error: it is a result, see `Report`.

CompatError
├── InvalidLevel         the text is not a compatibility level
├── InvalidSuppression   a suppression has no reason or an invalid value
├── InvalidBaselineFile  the text is not a baseline file
├── UnknownLint          the text is not a lint
├── NoSubject            no subject can be derived for a schema file
└── ComparisonTooLarge   comparing two schemas would exceed a limit
"""

from __future__ import annotations

from collections.abc import Sequence


class CompatError(Exception):
    """Root of the errors of this package."""


class InvalidLevel(CompatError):
    """`text` is not the name of a compatibility level; the message lists the levels."""

    def __init__(self, text: str, levels: tuple[str, ...]) -> None:
        super().__init__(text, levels)
        self.text = text
        self.levels = levels

    def __str__(self) -> str:
        return f"{self.text!r} is not a compatibility level; expected one of {', '.join(self.levels)}"


class InvalidSuppression(CompatError):
    pass


class InvalidBaselineFile(CompatError):
    pass


class UnknownLint(CompatError):
    """`text` is not a lint or not a severity of a lint; the message lists the expected values."""

    def __init__(self, text: str, expected: Sequence[str]) -> None:
        super().__init__(text, tuple(expected))
        self.text = text
        self.expected = tuple(expected)

    def __str__(self) -> str:
        return f"{self.text!r} is not a lint; expected one of {', '.join(self.expected)}"


class NoSubject(CompatError):
    pass


class ComparisonTooLarge(CompatError):
    """The comparison exceeded a limit; `limit` describes it."""

    def __init__(self, limit: str) -> None:
        super().__init__(limit)
        self.limit = limit

    def __str__(self) -> str:
        return f"the schemas cannot be compared: {self.limit}; use smaller unions of records or split the schema"
