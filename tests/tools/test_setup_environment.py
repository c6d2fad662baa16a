"""The next steps that `make setup` prints."""

from __future__ import annotations

import re
import subprocess

import pytest

from headrace.cli import _parser
from support.checkout import ROOT


def recipe(target: str) -> str:
    return subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(("target", "has_next_steps"), [("setup", True), ("demo", False), ("setup-dev", False)])
def test_only_make_setup_prints_next_steps(target: str, has_next_steps: bool) -> None:
    found = re.search(r"setup_environment\.py .*", recipe(target))
    assert found is not None
    assert ("--next" in found[0]) == has_next_steps


def test_next_steps_are_commands() -> None:
    text = (ROOT / "tools" / "setup_environment.py").read_text(encoding="utf-8")
    next_steps = re.findall(r"^  headrace (\w+)  ", text, re.MULTILINE)
    assert next_steps == ["doctor", "demo", "up", "help"]
    for name in next_steps[:-1]:
        assert callable(_parser([name]).parse_args([name]).run)
