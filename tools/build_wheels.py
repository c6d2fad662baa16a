"""Builds wheels with the compiled core in `dist/`: `python tools/build_wheels.py`.

PyPI's `ziglang` compiles for both processors on either of them, for a glibc version that all current Linux
distributions have. It takes 440 MB and nothing else uses it, so it is installed into a separate environment in `.make`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from setup_environment import COMPILER

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".make" / "wheels"
PROCESSORS = ("x86_64", "aarch64")


def main() -> int:
    python = ENVIRONMENT / "bin" / "python"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    if not python.is_file():
        subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True)
    subprocess.run([*pip, "install", "setuptools>=77", COMPILER], check=True)
    for processor in PROCESSORS:
        # Without build isolation, because the compiler is in this environment.
        command = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(ROOT / "dist"), str(ROOT)]
        subprocess.run(command, check=True, env={**os.environ, "HEADRACE_WHEEL_FOR": processor})
    for wheel in sorted((ROOT / "dist").glob("*.whl")):
        print(wheel.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
