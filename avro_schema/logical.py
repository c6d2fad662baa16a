"""Logical types (Avro 1.12) and the underlying types that each may annotate.

As the specification requires, a logical type that is unknown or invalid for its underlying type is ignored. It never
makes a schema invalid, and only remains in the properties.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from headrace.avro_schema.model import JsonValue, LogicalType

LOGICAL_TYPES: Mapping[str, frozenset[str]] = {
    "big-decimal": frozenset({"bytes"}),
    "uuid": frozenset({"string", "fixed"}),
    "date": frozenset({"int"}),
    "time-millis": frozenset({"int"}),
    "time-micros": frozenset({"long"}),
    "timestamp-millis": frozenset({"long"}),
    "timestamp-micros": frozenset({"long"}),
    "timestamp-nanos": frozenset({"long"}),
    "local-timestamp-millis": frozenset({"long"}),
    "local-timestamp-micros": frozenset({"long"}),
    "local-timestamp-nanos": frozenset({"long"}),
    "duration": frozenset({"fixed"}),
    "decimal": frozenset({"bytes", "fixed"}),
}

FIXED_SIZES: Mapping[str, int] = {"uuid": 16, "duration": 12}
"""Required sizes in bytes of a fixed with a logical type."""


def logical_type(attributes: Mapping[str, JsonValue], kind: str, size: int | None = None) -> LogicalType | None:
    """Returns the logical type in the attributes of a type, or None if it is absent or invalid.

    `kind` is the underlying type ("long", "fixed", …), `size` the size of a fixed in bytes.
    """
    name = attributes.get("logicalType")
    if not isinstance(name, str) or kind not in LOGICAL_TYPES.get(name, ()):
        return None
    if size is not None and FIXED_SIZES.get(name, size) != size:
        return None
    if name == "decimal":
        return _decimal(attributes, size)
    return LogicalType(name)


def decimal_digits_max(size: int) -> int:
    """Returns how many decimal digits a two's-complement number of `size` bytes can always hold."""
    return math.floor(math.log10(2) * (8 * size - 1)) if size else 0


def _decimal(attributes: Mapping[str, JsonValue], size: int | None) -> LogicalType | None:
    precision, scale = attributes.get("precision"), attributes.get("scale", 0)
    if type(precision) is not int or type(scale) is not int:
        return None
    if precision <= 0 or not 0 <= scale <= precision:
        return None
    if size is not None and precision > decimal_digits_max(size):
        return None
    return LogicalType("decimal", precision, scale)
