"""Avro bytes: validation, encoding, and the conversion of a message body to another schema.

`walk`, `check` and `rewrite` are the specification, in Python. `core` is the same in C, for speed: it runs programs
(`program`) over whole batches and leaves every body that it does not accept to Python. Without a compiled core, Python
does everything. The loader compiles the programs (`loader.project.projection`); clients use `check` and `encode`.
"""

from headrace.avro_codec.check import Check, compile_check
from headrace.avro_codec.core import library
from headrace.avro_codec.readable import UnreadableValue
from headrace.avro_codec.walk import BadBody, Seen

__all__ = [
    "BadBody",
    "Check",
    "Seen",
    "UnreadableValue",
    "build",
    "compile_check",
    "the_core",
    "why_no_core",
]

_CORE, _WHY_NONE = library.load()


def the_core() -> library.Library | None:
    """The core of this installation, None where it is not built; `why_no_core` says why."""
    return _CORE


def why_no_core() -> str:
    return _WHY_NONE


def build() -> str:
    """Which of the two makes the rows here, by the versions of what they agree on."""
    return "python" if the_core() is None else f"core {library.ABI}.{library.PROGRAM_VERSION}"
