"""How a command of Headrace is started as a child: what it imports is decided by the installation alone.

Python's `-m` looks into the working directory first, and so does an empty entry of PYTHONPATH, as
`PYTHONPATH=:/opt/lib`
has one. People start commands where a directory `headrace` lies, such as the one they cloned into.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping


def python_command(module: str, *arguments: str) -> list[str]:
    """Runs a module of ours by the Python that runs this process."""
    return [sys.executable, "-P", "-m", module, *arguments]


def python_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without empty entries of PYTHONPATH, for such a child."""
    entries = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    kept = {name: value for name, value in environment.items() if name != "PYTHONPATH"}
    return {**kept, "PYTHONPATH": os.pathsep.join(entries)} if entries else kept
