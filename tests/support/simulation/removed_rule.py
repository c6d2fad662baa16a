"""Runs a function of the product without one of its rules, to show that a test detects the missing rule."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import pytest


def without_rule(patch: pytest.MonkeyPatch, function: Callable[..., Any], line: str, instead: str) -> None:
    """Replaces a piece of a function's source by another text, for all callers of the function.

    Args:
        line: the piece of source, which must occur once.
        instead: the text that replaces it.
    """
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(line) == 1, f"{line!r} is {source.count(line)} times in {function.__qualname__}"
    names: dict[str, Any] = {}
    changed = f"from __future__ import annotations\n{source.replace(line, instead)}"
    exec(compile(changed, f"<{function.__name__} without a rule>", "exec"), function.__globals__, names)
    patch.setattr(function, "__code__", names[function.__name__].__code__)
