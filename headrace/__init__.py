"""Headrace: an Avro schema registry with an automatic Hadoop/Hive loader.

    from headrace import Consumer, Producer, RegistryClient

The names are imported when they are used, so that `import headrace` needs no library.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.consumer import Consumer
    from pipeline.producer import Producer
    from registry.client import RegistryClient

__all__ = ["Consumer", "Producer", "RegistryClient"]

_PUBLIC = {
    "Consumer": "pipeline.consumer",
    "Producer": "pipeline.producer",
    "RegistryClient": "registry.client",
}
_ROOMS = ("avro_schema", "compat", "hive_ddl", "registry", "broker", "loader", "audit", "pipeline")


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})


def _check_rooms(home: Path) -> None:
    """Refuses to run on another package of a room's name, which would fail later and less clearly.

    The rooms lie beside this package under plain names; an application may have an `audit` of its own, and whichever
    comes first on `sys.path` is what all of the process gets.

    Raises:
        ImportError: says which path is in the way.
    """
    for room in _ROOMS:
        try:
            spec = importlib.util.find_spec(room)
        except ValueError:  # a module that was put into sys.modules by hand has no spec
            spec = None
        found = _place(spec)
        if found is None or found.parent != home:
            raise ImportError(
                f"headrace needs its own package {room!r} at {home / room}, but Python finds "
                f"{found if found is not None else 'none'}; rename that one, or put {home} before it on sys.path"
            )


def _place(spec: Any) -> Path | None:
    """The folder of a package or the file of a module."""
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).resolve()
    return Path(spec.origin).resolve() if spec.origin else None


_check_rooms(Path(__file__).resolve().parent.parent)
