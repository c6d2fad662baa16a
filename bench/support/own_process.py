"""A case of a bench in a process of its own, so that none finds what another left in memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def measured_apart(module: str, case: Any) -> dict[str, Any]:
    """What `python -m module --case CASE` prints, a JSON object, on one core; the case is a data class."""
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
