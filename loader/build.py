"""Identifies the installation of Headrace by a text, the build. A driver puts its build into its work units and merge
units, and each task compares it with its own build, because another version could produce other rows."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import sys
from pathlib import Path
from types import ModuleType

from headrace import audit, avro_codec, avro_schema, kafka_wire, loader

PACKAGES: tuple[ModuleType, ...] = (audit, avro_codec, avro_schema, kafka_wire, loader)
"""Packages that determine the results of a task."""


def current_build() -> str:
    """Returns the build of this installation: release, checksum of the Python sources of `PACKAGES`, Python version,
    and whether the C core or Python converts rows."""
    try:
        release = importlib.metadata.version("headrace")
    except importlib.metadata.PackageNotFoundError:
        release = "not installed"
    python = ".".join(str(part) for part in sys.version_info[:2])
    return f"headrace {release} ({_sources()}), Python {python}, {avro_codec.build()} projection"


@functools.cache
def _sources() -> str:
    """Returns eight digits of a checksum over the sources of `PACKAGES`. It distinguishes two installations of one
    release, such as a checkout and an archive packed from it last week."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        (directory,) = map(Path, package.__path__)
        for path in sorted(directory.rglob("*.py")):
            digest.update(f"{package.__name__}/{path.relative_to(directory).as_posix()}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:8]


def missing_core_warnings() -> tuple[str, ...]:
    """Returns a warning for the user if the C core is missing, as a tuple with one sentence; else an empty tuple."""
    if avro_codec.core_library() is not None:
        return ()
    return (
        f"rows are converted in Python, which takes several times as long as the C core: "
        f"{avro_codec.missing_core_reason()}; `make setup` compiles it, or install a wheel for this machine",
    )
