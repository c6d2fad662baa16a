"""Runs a case of a benchmark in a new process, so that no case sees memory of another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def run_in_new_process(module: str, case: Any) -> dict[str, Any]:
    """Runs `python -m MODULE --case CASE` on one core, and returns the JSON object that it prints.

    Args:
        case: a data class, which is passed as JSON.
    """
    pinned = {min(os.sched_getaffinity(0))}
    done = subprocess.run(
        [sys.executable, "-m", module, "--case", json.dumps(asdict(case))],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        preexec_fn=lambda: os.sched_setaffinity(0, pinned),
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found
