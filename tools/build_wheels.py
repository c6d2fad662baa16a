"""Builds wheels with the compiled core in `dist/`: `python tools/build_wheels.py`.

A commit is rejected if it has a release tag that differs from its version.

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
sys.path.insert(0, str(ROOT / "headrace"))
from version import VERSION  # noqa: E402  (in the checkout, whether or not it is installed)

ENVIRONMENT = ROOT / ".make" / "wheels"
PROCESSORS = ("x86_64", "aarch64")


def mismatched_tags(checkout: Path) -> list[str]:
    """Returns the release tags of the checkout's commit (`v1.2.0`) if none of them is the one of its version. Sources
    without a directory `.git` have no tags."""
    if not (checkout / ".git").exists():  # git would search the parent directories
        return []
    tags = subprocess.run(
        ["git", "tag", "--points-at", "HEAD", "--list", "v[0-9]*"],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    return [] if f"v{VERSION}" in tags else tags


def main() -> int:
    if tags := mismatched_tags(ROOT):
        print(f"the tag {tags[0]} is not v{VERSION}, the version in headrace/version.py; correct one", file=sys.stderr)
        return 1
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
