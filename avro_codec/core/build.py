"""Builds the core's shared library beside its sources: `python avro_codec/core/build.py [zig]`.

Needs a C compiler and nothing else: the machine's `cc` (or `$CC`), or PyPI's `ziglang` where it is installed. Used by
`setup.py` before Headrace is installed, so it imports the standard library alone.
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
SOURCES = tuple(HERE / f"{name}.c" for name in ("hash", "program", "records", "run"))
HEADERS = tuple(HERE / f"{name}.h" for name in ("bytes", "core", "program"))
LIBRARY = "libheadrace_core.so"
FLAGS = ("-std=c11", "-O3", "-fPIC", "-shared", "-fvisibility=default")
ZIG_TARGETS = {"x86_64": "x86_64-linux-gnu.2.17", "aarch64": "aarch64-linux-gnu.2.17"}
"""By the processor's name: the glibc of manylinux2014, which every Linux of these years has."""


class BuildError(Exception):
    """There is no compiler, or it failed; the message says which in one line."""


def compiler() -> list[str]:
    """The command of a C compiler.

    Raises:
        BuildError: there is none.
    """
    if named := os.environ.get("CC"):
        return shlex.split(named)
    if found := shutil.which("cc"):
        return [found]
    return zig()


def zig() -> list[str]:
    """The command of PyPI's compiler.

    Raises:
        BuildError: it is not installed.
    """
    if importlib.util.find_spec("ziglang") is None:
        raise BuildError("no C compiler: neither `cc` on the PATH nor the package ziglang")
    return [sys.executable, "-m", "ziglang", "cc"]


def build(target: Path, command: list[str], *flags: str) -> None:
    """Compiles the core to `target`.

    Raises:
        BuildError: the compiler failed.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    made = target.with_name(f"{target.name}.{os.getpid()}")
    words = [*command, *FLAGS, *flags, "-o", str(made), *map(str, SOURCES)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"{words[0]} cannot be run: {error}") from error
    if done.returncode:
        said = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
        raise BuildError(f"{' '.join(command)} failed: {said}")
    made.replace(target)


def sources_digest() -> str:
    digest = hashlib.sha256()
    for path in (*SOURCES, *HEADERS, Path(__file__)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def build_in_place(command: list[str] | None = None) -> None:
    """Builds beside the sources unless what is there was built from them.

    Raises:
        BuildError: there is no compiler, or it failed.
    """
    stamp = HERE / f"{LIBRARY}.sources"
    wanted = sources_digest()
    if (HERE / LIBRARY).is_file() and stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return
    stamp.unlink(missing_ok=True)
    build(HERE / LIBRARY, command or compiler())
    stamp.write_text(wanted, encoding="utf-8")


if __name__ == "__main__":
    try:
        build_in_place(zig() if "zig" in sys.argv[1:] else None)
    except BuildError as error:
        print(f"the core cannot be built: {error}", file=sys.stderr)
        sys.exit(1)
