"""Which build runs here: drivers put it into their work units and tasks compare it with their own."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import sys
from pathlib import Path
from types import ModuleType

from headrace import audit, avro_codec, avro_schema, kafka_wire, loader

PACKAGES: tuple[ModuleType, ...] = (audit, avro_codec, avro_schema, kafka_wire, loader)
"""What a task's results follow from."""


def current_build() -> str:
    """Release, sources, Python and projection of this process; rows must not depend on which of a pool's machines made
    them."""
    try:
        release = importlib.metadata.version("headrace")
    except importlib.metadata.PackageNotFoundError:
        release = "not installed"
    python = ".".join(str(part) for part in sys.version_info[:2])
    return f"headrace {release} ({_sources()}), Python {python}, {avro_codec.build()} projection"


@functools.cache
def _sources() -> str:
    """Of two installations of one release, such as a checkout and what was packed of it last week, eight digits that
    differ where a module does."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        (directory,) = map(Path, package.__path__)
        for path in sorted(directory.rglob("*.py")):
            digest.update(f"{package.__name__}/{path.relative_to(directory).as_posix()}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:8]


def why_slow() -> tuple[str, ...]:
    """A sentence where the compiled core is missing, nothing where it is there."""
    if avro_codec.the_core() is not None:
        return ()
    return (
        f"rows are made by the Python reference, which takes several times as long as the compiled core: "
        f"{avro_codec.why_no_core()}; `make setup` or a wheel for this machine brings it",
    )
