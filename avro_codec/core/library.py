"""The ctypes interface of the core: the shared library and its structures, without any logic.

Calls release the interpreter lock, except for `is_value` and `convert_one`, which take less time than releasing it, and
`tally_delivered`, which reads Python objects.
The library has no state. The caller owns all buffers and must keep references to them during a call.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_uint32, c_uint64, c_void_p, py_object
from pathlib import Path
from typing import Any

from headrace.avro_codec.core.build import LIBRARY
from headrace.avro_codec.program import TIME_FIELDS_MAX, Program, pack_words

ABI = 10
PROGRAM_VERSION = 5

DONE, FULL, MESSAGE = 0, 1, 2
SOURCE_NONE = TIME_FIELDS_MAX
SOURCE_FUTURE = SOURCE_NONE + 1
UNREAD = SOURCE_FUTURE + 1
OLD_DAY = UNREAD + TIME_FIELDS_MAX
SOURCES = OLD_DAY + 1
SUFFIX_MODES = {"none": 0, "position": 1, "full": 2}

RECORD = "qqIiIiII"
"""Format of a record (`hr_record` in `core.h`): offset, time, position and size of the key and of the value, position
of the headers, end of the record. A size is -1 for null."""
WINDOW = "qqqQQQIHHQQq80s"
"""Format of the count of a window (`hr_window` in `core.h`): its start, the value in the time field and the time of
its first message, number of messages, bytes, fingerprint, index of the first message's program, source of its time
(`HR_SOURCE_…`), unit of the value (`HR_UNIT_…`)."""
TIME_PARTITION = "qQQQQ"
"""Format of the rows of one time partition (`hr_time_partition` in `core.h`): its number (time divided by the length of
a time partition), position and size of its rows, index of the first row, number of rows."""

TALLIED_TOGETHER = 512
"""Maximum number of messages in one call of `tally_delivered`."""
TALLY = "QqQQQQqqQQQ"
"""Format of the count of a consumer's messages (`hr_tally` in `core.h`): index of the first message, window start,
number, bytes, fingerprint, late messages, first offset, offset after the last one, number, sum and maximum of the
latencies."""
LATENCY_BUCKET = "IIQ"
"""Format of a bucket of latencies (`hr_latency_bucket` in `core.h`): index of the tally, bucket, number."""


SENT_ROW = "qqqqPPQQQQ232I"
"""Format of the running count of a producer (`hr_sent_row` in `core.h`): whether it is open, start and end of its
message times, the time after which messages are late, addresses of the sums and of None; number of late messages,
number, sum and maximum of the latencies, buckets of latencies."""


class CProgram(ctypes.Structure):
    _fields_ = (
        ("code", c_void_p),
        ("constants", c_char_p),
        ("constants_size", c_uint64),
        ("schema_id", c_int32),
        ("has_time_field", c_int32),
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


class COutput(ctypes.Structure):
    _fields_ = (
        ("rows", c_void_p),
        ("grouped", c_void_p),
        ("rows_capacity", c_uint64),
        ("offsets", c_void_p),
        ("ends", c_void_p),
        ("scratch", c_void_p),
        ("columns_capacity", c_uint64),
        ("windows", c_void_p),
        ("time_partitions", c_void_p),
        ("sources", c_void_p),
        ("window_count", c_uint64),
        ("time_partition_count", c_uint64),
        ("row_count", c_uint64),
        ("tombstones", c_uint64),
        ("next", c_uint64),
        ("is_grouped", c_int32),
        ("status", c_int32),
    )


METH_FASTCALL = 0x80
"""Calling convention of Python's stable ABI (`PyMethodDef`)."""


class CMethod(ctypes.Structure):
    """`PyMethodDef` of Python's stable ABI."""

    _fields_ = (("name", c_char_p), ("function", c_void_p), ("flags", c_int32), ("documentation", c_char_p))


_METHODS: list[CMethod] = []
"""The structures of functions, which may be called after their library was deleted."""


class CTallyOutput(ctypes.Structure):
    _fields_ = (
        ("tallies", c_void_p),
        ("buckets", c_void_p),
        ("tally_count", c_uint64),
        ("bucket_count", c_uint64),
    )


class CLines(ctypes.Structure):
    """`hr_lines` in `core.h`."""

    _fields_ = (
        ("body", c_char_p),
        ("body_size", c_uint64),
        ("before", c_char_p),
        ("before_size", c_uint64),
        ("after", c_char_p),
        ("after_size", c_uint64),
        ("headers", c_char_p),
        ("headers_size", c_uint64),
        ("records", c_void_p),
        ("records_capacity", c_uint64),
        ("begin", c_uint64),
        ("delta", c_uint64),
        ("record_overhead", c_uint64),
        ("record_size_max", c_uint64),
        ("sizes_max", c_uint64),
        ("at", c_uint64),
        ("count", c_uint64),
        ("records_size", c_uint64),
        ("sizes", c_uint64),
        ("value_bytes", c_uint64),
        ("fingerprint", c_uint64),
        ("status", c_int32),
    )


class Library:
    """The compiled core, loaded as a shared library.

    Raises:
        OSError: the library is missing, or built for another machine.
        ValueError: the library has another version.
        AttributeError: the library lacks a function.
    """

    def __init__(self, path: Path) -> None:
        found = ctypes.CDLL(str(path))
        found.hr_abi.argtypes = found.hr_program_version.argtypes = ()
        found.hr_abi.restype = found.hr_program_version.restype = c_int32
        versions = found.hr_abi(), found.hr_program_version()
        if versions != (ABI, PROGRAM_VERSION):
            raise ValueError(
                f"the compiled C core {path} has version {versions[0]}.{versions[1]}, expected {ABI}.{PROGRAM_VERSION}"
            )
        self.records = found.hr_records
        self.records.argtypes = (c_void_p, c_uint64, c_uint64, c_int64, c_int64, c_int32, c_int64, c_void_p)
        self.records.restype = c_int32
        self.run = found.hr_run
        self.run.argtypes = (POINTER(CRange), c_void_p, c_void_p, c_uint64, c_uint64, POINTER(COutput))
        self.run.restype = None
        self.project = found.hr_project
        self.project.argtypes = (
            POINTER(CProgram), c_char_p, c_uint64, c_void_p, c_uint64, POINTER(c_int32), POINTER(c_int64)
        )  # fmt: skip
        self.project.restype = c_int64
        # These two are called for single messages; releasing the interpreter lock would take as long as the call.
        locked = ctypes.PyDLL(str(path))
        self.is_value = locked.hr_is_value
        self.is_value.argtypes = (c_void_p, c_char_p, c_uint64)
        self.is_value.restype = c_int32
        self.convert_one = locked.hr_project
        self.convert_one.argtypes = (c_void_p, c_char_p, c_uint64, c_void_p, c_uint64, c_void_p, c_void_p)
        self.convert_one.restype = c_int64
        self.can_tally = bool(found.hr_can_tally())
        self._row_methods = tuple(
            CMethod(name, ctypes.cast(function, c_void_p), METH_FASTCALL, None)
            for name, function in ((b"count", found.hr_row_count), (b"acknowledge", found.hr_row_acknowledge))
        )
        _METHODS.extend(self._row_methods)
        self.tally_delivered = locked.hr_tally_delivered  # reads Python objects
        self.tally_delivered.argtypes = (
            py_object, py_object, c_int64, c_int64, c_int64, c_uint64, c_uint64, POINTER(CTallyOutput)
        )  # fmt: skip
        self.tally_delivered.restype = c_int32
        self.encode_lines = found.hr_encode_lines
        self.encode_lines.argtypes = (POINTER(CLines),)
        self.encode_lines.restype = None
        self.message_hash = found.hr_message_hash
        self.message_hash.argtypes = (c_char_p, c_int64, c_char_p, c_uint64)
        self.message_hash.restype = c_uint64

    def row_functions(self, row: bytearray) -> tuple[Any, Any]:
        """Returns the functions `count` and `acknowledge` of a producer's running count, which `row` contains. They are
        functions of Python, because a call through ctypes takes several times as long."""
        new_function = ctypes.pythonapi.PyCFunction_NewEx
        new_function.argtypes, new_function.restype = (c_void_p, py_object, c_void_p), py_object
        count, acknowledge = (new_function(ctypes.addressof(each), row, None) for each in self._row_methods)
        return count, acknowledge


def uint32s(words: bytes) -> ctypes.Array[c_uint32]:
    """Returns the 32-bit words of a program as a C array, with the alignment that the core requires."""
    return (c_uint32 * (len(words) // 4)).from_buffer_copy(words)


def c_program(program: Program, schema_id: int, *, has_time_field: bool) -> tuple[CProgram, object]:
    """Returns the C structure of a program, and the Python object that owns the memory to which the structure points.
    Keep this object as long as the structure is used.

    Args:
        schema_id: id of the writer schema of the messages that the program converts; 0 if unused.
        has_time_field: whether the writer schema has a time field.
    """
    words = uint32s(pack_words(program.words))
    compiled = CProgram(ctypes.addressof(words), program.constants, len(program.constants), schema_id, has_time_field)
    return compiled, words


def load() -> tuple[Library | None, str]:
    """Loads the compiled core from the directory of this module. Returns the library and "", or None and the reason why
    the library cannot be used."""
    path = Path(__file__).with_name(LIBRARY)
    try:
        return Library(path), ""
    except OSError:
        return None, f"{path.name} is not built for this machine" if path.exists() else f"{path.name} was not built"
    except (ValueError, AttributeError) as error:
        return None, str(error)
