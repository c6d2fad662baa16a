"""Conversions of logical types that fastavro lacks, or in which it changes values silently.

They are registered with fastavro under names of their own, which `clients.encoding` puts into the schemas that it gives
to fastavro; other users of fastavro in the process are not affected. Without them fastavro would

- round a decimal that has more digits than its precision, when it reads it,
- read a negative time of day as another time, such as -1 ms as 00:00:00.999,
- ignore `fold` of a datetime without time zone, and so store another hour when a clock was set back,
- read and write a fixed with the logical type uuid as bytes only.
"""

from __future__ import annotations

import datetime
import decimal
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from fastavro.read import LOGICAL_READERS
from fastavro.write import LOGICAL_WRITERS

_PREFIX: Final = "headrace-"
_EXACT: Final = decimal.Context(prec=decimal.MAX_PREC, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)


def name_for_fastavro(kind: str, logical: str) -> str:
    """Returns the name of the logical type `logical` of the underlying type `kind` ("long", "fixed", …) in schemas for
    fastavro."""
    return _PREFIX + logical if (kind, logical) in _REGISTERED else logical


def _read_decimal(data: bytes, schema: Mapping[str, Any], reader_schema: Any = None) -> decimal.Decimal:
    number = decimal.Decimal(int.from_bytes(data, "big", signed=True))
    return number.scaleb(-schema.get("scale", 0), _EXACT)


def _read_time(name: str, per_day: int) -> Callable[..., datetime.time]:
    read = LOGICAL_READERS[name]

    def read_time(number: int, schema: Any = None, reader_schema: Any = None) -> datetime.time:
        if not 0 <= number < per_day:
            raise ValueError(f"{number} is no time of a day")
        found: datetime.time = read(number, schema, reader_schema)
        return found

    return read_time


def _read_uuid(data: bytes, schema: Any = None, reader_schema: Any = None) -> uuid.UUID:
    return uuid.UUID(bytes=bytes(data))


def _write_uuid(value: Any, schema: Any) -> Any:
    return value.bytes if isinstance(value, uuid.UUID) else value


def _write_timestamp(name: str) -> Callable[[Any, Any], Any]:
    write_aware = LOGICAL_WRITERS[name]

    def write(value: Any, schema: Any) -> Any:
        if isinstance(value, datetime.datetime) and value.tzinfo is None:
            value = value.astimezone()  # local time of the process, as everywhere in Python
        return write_aware(value, schema)

    return write


_REGISTERED: Final[Mapping[tuple[str, str], tuple[Callable[..., Any] | None, Callable[..., Any] | None]]] = {
    ("bytes", "decimal"): (_read_decimal, None),
    ("fixed", "decimal"): (_read_decimal, None),
    ("int", "time-millis"): (_read_time("int-time-millis", 86_400_000), None),
    ("long", "time-micros"): (_read_time("long-time-micros", 86_400_000_000), None),
    ("fixed", "uuid"): (_read_uuid, _write_uuid),
    ("long", "timestamp-millis"): (None, _write_timestamp("long-timestamp-millis")),
    ("long", "timestamp-micros"): (None, _write_timestamp("long-timestamp-micros")),
}
"""The functions that read and write each logical type; None for fastavro's own."""

for (_kind, _logical), (_read, _write) in _REGISTERED.items():
    LOGICAL_READERS[f"{_kind}-{_PREFIX}{_logical}"] = _read or LOGICAL_READERS[f"{_kind}-{_logical}"]
    LOGICAL_WRITERS[f"{_kind}-{_PREFIX}{_logical}"] = _write or LOGICAL_WRITERS[f"{_kind}-{_logical}"]
