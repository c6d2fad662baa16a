"""Reads documentation pages for tests that check their content."""

from __future__ import annotations

import re

from support.checkout import ROOT


def page(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    """Returns the code blocks of a language, without their fences."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def block(text: str, begins_with: str) -> str:
    """Returns the only code block that begins with this text."""
    (found,) = [code for code in blocks(text, r"\w*") if code.startswith(begins_with)]
    return found
