"""The answer of a run as text: one module for each format, imported when it is asked for."""

from __future__ import annotations

import importlib
from typing import Final

from headrace.compat.check_result import CheckResult

FORMATS: Final = ("text", "json", "junit", "sarif", "github", "gitlab", "markdown")
"""Each is a module here with a function `outcome_<format>`."""


def render(name: str, result: CheckResult) -> str:
    """A run in one of the `FORMATS`, as what goes into a file."""
    text: str = getattr(importlib.import_module(f"headrace.compat.formats.{name}"), f"render_{name}")(result)
    return text
