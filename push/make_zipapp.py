"""Packs the push client into one file that runs on any Python from 3.9, without an installation of Headrace.

python -m headrace.push.make_zipapp headrace-push.pyz
"""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

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
            for name, text in (("__main__.py", MAIN), ("headrace/__init__.py", "")):
                archive.writestr(zipfile.ZipInfo(name, TIME), text, zipfile.ZIP_DEFLATED)
            for path in MODULES:
                archive.writestr(
                    zipfile.ZipInfo(f"headrace/push/{path.name}", TIME), path.read_bytes(), zipfile.ZIP_DEFLATED
                )
    temporary.chmod(0o755)
    os.replace(temporary, target)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m headrace.push.make_zipapp FILE")
    make_zipapp(Path(sys.argv[1]))
