"""The hot loops: what a body must be, and what it becomes in the load schema.

`reference` is the meaning, in Python. `core` is C and only the speed: it takes whole batches (`batches`) by programs
that the reference compiles (`program`), and leaves to the reference whatever it does not accept. Where it is not built
the reference does everything. `check` is the first question alone, for consumers, which decode by other means.
"""

from headrace.loader.native.check import Check, compile_check
from headrace.loader.native.core import library
from headrace.loader.native.readable import UnreadableValue
from headrace.loader.native.reference import Projection, Unconvertible, compile_projection, compile_time_walk
from headrace.loader.native.walk import BadBody, Seen

__all__ = [
    "BadBody",
    "Check",
    "Projection",
    "Seen",
    "Unconvertible",
    "UnreadableValue",
    "build",
    "compile_check",
    "compile_projection",
    "compile_time_walk",
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
