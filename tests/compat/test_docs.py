"""docs/compat.md documents all flags, formats, strategies and exit codes."""

from __future__ import annotations

import argparse

import pytest

from headrace.cli import compat, schema
from headrace.compat.check_result import EXIT_CODES, FailureKind
from headrace.compat.formats import FORMATS
from headrace.compat.subjects import STRATEGIES
from support.pages import page

PAGE = page("docs/compat.md")
OBVIOUS = {"--help", "--config", "--data-dir", "--registry-url"}
"""Flags of every command, documented in docs/settings.md."""


def flags(parser: argparse.ArgumentParser) -> set[str]:
    found = set()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= {flag for verb in action.choices.values() for flag in flags(verb)}
        found |= {option for option in action.option_strings if option.startswith("--")}
    return found


@pytest.mark.parametrize("module", [compat, schema], ids=["compat", "schema"])
def test_every_flag_is_documented(module: object) -> None:
    parser = argparse.ArgumentParser()
    module.configure(parser)  # type: ignore[attr-defined]
    assert not [flag for flag in sorted(flags(parser) - OBVIOUS) if f"{flag}" not in PAGE]


def test_every_format_strategy_and_failure_is_documented() -> None:
    for word in (*FORMATS, *STRATEGIES, *FailureKind):
        assert f"`{word}`" in PAGE, word
    for code in EXIT_CODES.values():
        assert f"| {code} | " in PAGE
