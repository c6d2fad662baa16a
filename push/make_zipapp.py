"""Packs the push client into one file that runs on any Python from 3.9, without an installation of Headrace.

python -m headrace.push.make_zipapp headrace-push.pyz

The file has each module as source and compiled for the Python that packs it. Another minor version of Python ignores
the compiled one, because its magic number differs, and compiles the source at each start: 50 ms and 1.4 MB more.
"""

from __future__ import annotations

import os
import py_compile
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

PACKAGE = Path(__file__).resolve().parent
MODULES = sorted(path for path in PACKAGE.glob("*.py") if path.name != Path(__file__).name)
MAIN = """import sys

sys.modules["ssl"] = None  # without it, http.client does not import OpenSSL, which takes 4 MB
import http.client

del sys.modules["ssl"]
from headrace.push.command import main

sys.exit(main())
"""
SHEBANG = b"#!/usr/bin/env python3\n"
TIME = (2020, 1, 1, 0, 0, 0)
"""Of all entries, so that equal sources give an equal file."""


def make_zipapp(target: Path) -> None:
    """Writes the program. Replaces the file as a whole, because it may run at the moment."""
    temporary = target.with_name(f".{target.name}.tmp")
    with temporary.open("wb") as file:
        file.write(SHEBANG)
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            _add(archive, "__main__.py", MAIN.encode())
            _add(archive, "headrace/__init__.py", b"")
            for path in MODULES:
                name = f"headrace/push/{path.name}"
                _add(archive, name, path.read_bytes())
                _add(archive, f"{name}c", _compiled(path, name))
    temporary.chmod(0o755)
    os.replace(temporary, target)


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    archive.writestr(zipfile.ZipInfo(name, TIME), content, zipfile.ZIP_DEFLATED)


def _compiled(path: Path, name: str) -> bytes:
    """Returns the compiled module. By its flags (PEP 552, unchecked) an import does not compare it with the source."""
    with TemporaryDirectory() as directory:
        target = Path(directory) / f"{path.name}c"
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(str(path), str(target), name, doraise=True, invalidation_mode=mode)
        return target.read_bytes()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m headrace.push.make_zipapp FILE")
    make_zipapp(Path(sys.argv[1]))
