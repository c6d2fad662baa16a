"""Comments in schema texts, which are no JSON, but which Avro Java reads past: licence headers, mostly."""

from __future__ import annotations

import re

_TEXT_OR_COMMENT = re.compile(r'"(?:[^"\\]|\\.)*"|/\*.*?\*/|//[^\n]*', re.DOTALL)
_NOT_A_LINE_END = re.compile(r"[^\r\n]")


def without_comments(text: str) -> str:
    """The same text with blanks for comments, so that all else keeps its line and column."""
    if "/*" not in text and "//" not in text:
        return text
    return _TEXT_OR_COMMENT.sub(
        lambda found: found[0] if found[0].startswith('"') else _NOT_A_LINE_END.sub(" ", found[0]), text
    )
