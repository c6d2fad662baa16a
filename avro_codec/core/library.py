"""The core as Python sees it: the shared library, its structures, and nothing that decides.

Calls leave the interpreter lock to others, but for the one that is over sooner than the lock would have changed hands.
The library has no state; whoever calls it owns every buffer, and must keep it alive while a call lasts.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from pathlib import Path

from headrace.avro_codec.core.build import LIBRARY
from headrace.avro_codec.program import Program, packed

ABI = 2
PROGRAM_VERSION = 1

DONE, FULL, MESSAGE = 0, 1, 2
SOURCES = 3
SUFFIX_MODES = {"none": 0, "position": 1, "full": 2}

RECORD = "qqIiIiII"
"""offset, time, and where key, value and headers are; sizes are -1 for null."""
WINDOW = "qqqQQQIi"
"""start, value and time of the first message, count, bytes, fingerprint, program, source"""
BUCKET = "qQQQQ"
"""period, where its rows are and their size, the first of its columns, how many rows"""


class CProgram(ctypes.Structure):
    _fields_ = (
        ("code", c_void_p),
        ("constants", c_char_p),
        ("constants_size", c_uint64),
        ("schema_id", c_int32),
        ("time_unit", c_int32),
    )


class CRange(ctypes.Structure):
    _fields_ = (
        ("programs", POINTER(CProgram)),
        ("program_count", c_uint64),
        ("suffix", c_char_p),
        ("suffix_size", c_uint64),
        ("suffix_mode", c_int32),
        ("is_clamped", c_int32),
        ("future_ms_max", c_int64),
        ("now_ms", c_int64),
        ("time_ms_max", c_int64),
        ("window_ms", c_int64),
        ("period_ms", c_int64),
    )


class CTaken(ctypes.Structure):
    _fields_ = (
        ("rows", c_void_p),
        ("grouped", c_void_p),
        ("rows_room", c_uint64),
        ("offsets", c_void_p),
        ("ends", c_void_p),
        ("scratch", c_void_p),
        ("columns_room", c_uint64),
        ("windows", c_void_p),
        ("buckets", c_void_p),
        ("sources", c_void_p),
        ("window_count", c_uint64),
        ("bucket_count", c_uint64),
        ("row_count", c_uint64),
        ("tombstones", c_uint64),
        ("next", c_uint64),
        ("is_grouped", c_int32),
        ("status", c_int32),
    )


class Library:
    """A loaded core.

    Raises:
        OSError: there is no such library, or it is for another machine.
        ValueError: it was built from other sources than these.
    """

    def __init__(self, path: Path) -> None:
        found = ctypes.CDLL(str(path))
        found.hr_abi.argtypes = found.hr_program_version.argtypes = ()
        found.hr_abi.restype = found.hr_program_version.restype = c_int32
        has = found.hr_abi(), found.hr_program_version()
        if has != (ABI, PROGRAM_VERSION):
            raise ValueError(f"{path} is version {has[0]}.{has[1]}, expected {ABI}.{PROGRAM_VERSION}")
        self.records = found.hr_records
        self.records.argtypes = (c_void_p, c_uint64, c_uint64, c_int64, c_int64, c_int32, c_int64, c_void_p)
        self.records.restype = c_int32
        self.run = found.hr_run
        self.run.argtypes = (POINTER(CRange), c_void_p, c_void_p, c_uint64, c_uint64, POINTER(CTaken))
        self.run.restype = None
        self.project = found.hr_project
        self.project.argtypes = (
            POINTER(CProgram), c_char_p, c_uint64, c_void_p, c_uint64, POINTER(c_int32), POINTER(c_int64)
        )  # fmt: skip
        self.project.restype = c_int64
        # Asked of each message by itself; letting go of the lock takes as long as the answer.
        self.is_value = ctypes.PyDLL(str(path)).hr_is_value
        self.is_value.argtypes = (c_void_p, c_char_p, c_uint64)
        self.is_value.restype = c_int32
        self.message_hash = found.hr_message_hash
        self.message_hash.argtypes = (c_char_p, c_int64, c_char_p, c_uint64)
        self.message_hash.restype = c_uint64


def uint32s(words: bytes) -> ctypes.Array[c_uint32]:
    """Words in memory of their own, aligned as the core reads them."""
    return (c_uint32 * (len(words) // 4)).from_buffer_copy(words)


def c_program(program: Program, schema_id: int, time_unit: int) -> tuple[CProgram, object]:
    """A program as the core reads it, and what must live as long."""
    words = uint32s(packed(program.words))
    made = CProgram(ctypes.addressof(words), program.constants, len(program.constants), schema_id, time_unit)
    return made, words


def load() -> tuple[Library | None, str]:
    """The library beside this file, or None and why there is none."""
    path = Path(__file__).with_name(LIBRARY)
    try:
        return Library(path), ""
    except OSError:
        return None, f"{path.name} is not built for this machine" if path.exists() else f"{path.name} was not built"
    except (ValueError, AttributeError) as error:
        return None, str(error)
