"""What can go wrong between a registry and a file, below the room's root.

RegistryError
├── ExportFileInvalid     a file that is none, is cut off or was changed
├── RegistryChanged       the source was written to while it was read
├── AnswerUnusable        an answer that no registry with this API gives
└── ImportStopped         the target did something else than what was asked
"""

from __future__ import annotations

from headrace.registry.errors import RegistryError


class ExportFileInvalid(RegistryError):
    """`place` is the file's name, with a line number where the error is one line's."""

    def __init__(self, place: str, problem: str) -> None:
        self.place = place
        super().__init__(f"{place}: {problem}")


class RegistryChanged(RegistryError):
    pass


class AnswerUnusable(RegistryError):
    pass


class ImportStopped(RegistryError):
    pass
