"""What can go wrong while schemas are compared. Incompatibility is not an error: it is the answer, in a `Report`.

CompatError
├── InvalidLevel         a word that is not a compatibility level
├── InvalidSuppression   a suppression without a reason, or with what is none
├── InvalidBaselineFile  a text that is no file of known findings
├── UnknownLint          a word that is no lint
├── NoSubject            a schema file whose subject cannot be told
└── ComparisonTooLarge   two schemas whose comparison would take unreasonably long
"""

from __future__ import annotations

from collections.abc import Sequence


class CompatError(Exception):
    """Root of this package's errors."""


class InvalidLevel(CompatError):
    """`text` is not a level; the message lists the levels."""

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
    """`text` means no lint, or no severity of one; the message lists what is expected."""

    def __init__(self, text: str, expected: Sequence[str]) -> None:
        super().__init__(text, tuple(expected))
        self.text = text
        self.expected = tuple(expected)

    def __str__(self) -> str:
        return f"{self.text!r} is not a lint; expected one of {', '.join(self.expected)}"


class NoSubject(CompatError):
    pass


class ComparisonTooLarge(CompatError):
    """The comparison went beyond a limit; `limit` says which."""

    def __init__(self, limit: str) -> None:
        super().__init__(limit)
        self.limit = limit

    def __str__(self) -> str:
        return f"the schemas cannot be compared: {self.limit}; make unions of records smaller or split the schema"
