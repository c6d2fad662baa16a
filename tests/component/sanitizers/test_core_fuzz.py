"""Runs the core with AddressSanitizer and UndefinedBehaviorSanitizer on the fuzzing corpus and on mutated batches.

`make fuzz-core` runs longer, with another seed each time; `make fuzz-core-guided` extends the corpus.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from support.checkout import ROOT
from support.loader import core_corpus

pytestmark = pytest.mark.simulation

SECONDS = 12


@pytest.mark.timeout(180)
def test_core_matches_reference_on_corpus_and_mutated_batches() -> None:
    command = [sys.executable, str(ROOT / "tests" / "support" / "loader" / "core_fuzz.py"), str(SECONDS), "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no finding" in done.stdout
    assert f"{len(core_corpus.inputs())} corpus inputs" in done.stdout
