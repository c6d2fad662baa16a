"""Avro bytes: validation, encoding, and the conversion of a message body to another schema.

`walk`, `check`, `rewrite` and `resolve` are the specification, in Python. `core` does the same in C, faster: it runs
programs (`program`) on whole batches or single bodies, and leaves every body that it does not accept to Python. Without
a compiled core, Python does everything. The loader (`loader.project.projection`), `resolve` and `check` compile the
programs; clients use `check`, `resolve` and `encode`.
"""

from headrace.avro_codec.check import Check, compile_check
from headrace.avro_codec.core import library
from headrace.avro_codec.readable import UnreadableValue
from headrace.avro_codec.resolve import UnresolvableValue, compile_resolution
from headrace.avro_codec.walk import BadBody, CapturedTime

__all__ = [
    "BadBody",
    "CapturedTime",
    "Check",
    "UnreadableValue",
    "UnresolvableValue",
    "build",
    "compile_check",
    "compile_resolution",
    "core_library",
    "missing_core_reason",
]

_CORE, _MISSING_REASON = library.load()


def core_library() -> library.Library | None:
    """Returns the compiled core, or None if it cannot be used; `missing_core_reason` returns the reason."""
    return _CORE


def missing_core_reason() -> str:
    """Returns the reason why the core cannot be used; "" if it can."""
    return _MISSING_REASON


def build() -> str:
    """Returns the name of the implementation that converts messages to rows: "python", or "core" followed by its
    versions."""
    return "python" if core_library() is None else f"core {library.ABI}.{library.PROGRAM_VERSION}"
