"""The core under AddressSanitizer and UndefinedBehaviorSanitizer, with mutated batches, for a short while.

`make fuzz-core` goes on for longer, with another seed each time.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from checkout import ROOT

SECONDS = 12


@pytest.mark.timeout(180)
def test_mutated_batches_come_out_as_by_the_reference_and_break_nothing() -> None:
    command = [sys.executable, str(ROOT / "tests" / "support" / "core_fuzz.py"), str(SECONDS), "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no finding" in done.stdout
