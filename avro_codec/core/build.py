"""Builds the shared library of the core in the directory of its sources: `python avro_codec/core/build.py [zig]`.

It needs only a C compiler: `cc` (or `$CC`), or the package `ziglang` from PyPI. `setup.py` runs it before Headrace is
installed, so it imports only the standard library.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = tuple(HERE / f"{name}.c" for name in ("hash", "log_lines", "program", "records", "run", "tally", "time_text"))
HEADERS = tuple(HERE / f"{name}.h" for name in ("bytes", "core", "hash", "program"))
LIBRARY = "libheadrace_core.so"
FLAGS = ("-std=c11", "-O3", "-fPIC", "-shared", "-fvisibility=default")
ZIG_TARGETS = {"x86_64": "x86_64-linux-gnu.2.17", "aarch64": "aarch64-linux-gnu.2.17"}
"""Targets by processor, with the glibc version of manylinux2014, which every current Linux with glibc has."""


class BuildError(Exception):
    """No compiler was found, or it could not be run or failed."""


def compiler() -> list[str]:
    """Returns the command of a C compiler: the program and its first arguments.

    Raises:
        BuildError: none was found.
    """
    if command := os.environ.get("CC"):
        return shlex.split(command)
    if found := shutil.which("cc"):
        return [found]
    return zig()


def zig() -> list[str]:
    """Returns the command of the compiler in `ziglang`.

    Raises:
        BuildError: `ziglang` is not installed.
    """
    if importlib.util.find_spec("ziglang") is None:
        raise BuildError("no C compiler found; install `cc` or the package ziglang")
    return [sys.executable, "-m", "ziglang", "cc"]


def build(target: Path, command: list[str], *flags: str) -> None:
    """Compiles the core (the C library that converts messages) to the file `target`.

    Args:
        command: the compiler and its first arguments, as `compiler` returns them.
        flags: more arguments of the compiler.

    Raises:
        BuildError: the compiler failed or cannot be run.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f"{target.name}.{os.getpid()}")
    words = [*command, *FLAGS, *flags, "-o", str(temporary), *map(str, SOURCES)]
    try:
        completed = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"the C compiler {words[0]} cannot be run: {error}") from error
    if completed.returncode:
        message = next(
            (line for line in completed.stderr.splitlines() if "error" in line), completed.stderr.strip()[:200]
        )
        raise BuildError(f"{' '.join(command)} failed: {message}")
    temporary.replace(target)


def sources_digest() -> str:
    sha256 = hashlib.sha256()
    for path in (*SOURCES, *HEADERS, Path(__file__)):
        sha256.update(path.read_bytes())
    return sha256.hexdigest()


def build_in_place(command: list[str] | None = None) -> None:
    """Compiles the core to the directory of its sources, unless the existing library was built from the same sources.

    Args:
        command: the compiler and its first arguments; None for the compiler that `compiler` finds.

    Raises:
        BuildError: no compiler was found, or it failed.
    """
    stamp = HERE / f"{LIBRARY}.sources"
    digest = sources_digest()
    if (HERE / LIBRARY).is_file() and stamp.is_file() and stamp.read_text(encoding="utf-8") == digest:
        return
    stamp.unlink(missing_ok=True)
    build(HERE / LIBRARY, command or compiler())
    stamp.write_text(digest, encoding="utf-8")


if __name__ == "__main__":
    try:
        build_in_place(zig() if "zig" in sys.argv[1:] else None)
    except BuildError as error:
        print(f"the core cannot be built: {error}", file=sys.stderr)
        sys.exit(1)
