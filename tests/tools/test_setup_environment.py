"""What `make setup` says at its end."""

from __future__ import annotations

import re
import subprocess

import pytest

from headrace.cli import _parser
from support.checkout import ROOT


def recipe(target: str) -> str:
    return subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(("target", "says_next"), [("setup", True), ("demo", False), ("setup-dev", False)])
def test_what_to_do_next_is_said_to_whoever_called_set_up(target: str, says_next: bool) -> None:
    found = re.search(r"setup_environment\.py .*", recipe(target))
    assert found is not None
    assert ("--next" in found[0]) == says_next


def test_what_to_do_next_are_commands() -> None:
    text = (ROOT / "tools" / "setup_environment.py").read_text(encoding="utf-8")
    next_steps = re.findall(r"^  headrace (\w+)  ", text, re.MULTILINE)
    assert next_steps == ["doctor", "demo", "up", "help"]
    for name in next_steps[:-1]:
        assert callable(_parser([name]).parse_args([name]).run)
