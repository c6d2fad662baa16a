"""A fake terminal for tests of colour and progress output."""

from __future__ import annotations

import io


class Terminal(io.StringIO):
    """A text buffer that reports to be a terminal."""

    def isatty(self) -> bool:
        return True
