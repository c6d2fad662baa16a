"""Output formats of a run: one module per format, imported on use."""

from __future__ import annotations

import importlib
from typing import Final

from headrace.compat.check_result import CompatCheckResult

FORMATS: Final = ("text", "json", "junit", "sarif", "github", "gitlab", "markdown")
"""Names of the formats. Each is a module of this package with a function `render_<format>`."""


def render(name: str, result: CompatCheckResult) -> str:
    """Returns the result of a run as text in the format `name`, one of `FORMATS`."""
    text: str = getattr(importlib.import_module(f"headrace.compat.formats.{name}"), f"render_{name}")(result)
    return text
