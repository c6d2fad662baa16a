"""Spark SQL expressions that convert values of a sibling column to the type of the field's present column, for the view
`<table>_latest`.

The rules are tables: `TIMES` has a row per type of dates and times, `NUMBERS` a row per pair of kinds of other plain
types. Lists, maps, records and unions are converted part by part. The expressions hold for every value and in every
session:

- They never fail. The result is null if the present type cannot represent the value.
- They do not depend on the session's time zone or on `spark.sql.ansi.enabled`.
- They are exact, except for the conversions that docs/tables.md names: floating-point numbers are rounded, and times
  are truncated to the present unit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from headrace.avro_schema import Array, Enum, Field, Fixed, Map, Primitive, PrimitiveType, Record, Schema, Type
from headrace.hive_ddl.names import quote_identifier, quote_literal
from headrace.hive_ddl.types import DECIMAL_PRECISION_MAX, hive_type
from headrace.loader.load_schema import DECIMAL, MEMBERS, UNSCALED, accepted_names, kind_of, prop, split

MICROS_PER_DAY: Final = 86_400_000_000


def _floor_divided(divisor: int) -> str:
    """Returns a template for the quotient of a bigint, rounded down. `DIV` alone rounds towards zero, which would move
    times before 1970 to a later one."""
    return f"({{value}} DIV {divisor} - CAST({{value}} % {divisor} < 0 AS bigint))"


_BY_1000: Final = "try_multiply({value}, 1000)"
_DIV_1000: Final = _floor_divided(1000)
_LOCAL_TIME: Final = (
    f"timestampadd(DAY, CAST({_floor_divided(MICROS_PER_DAY)} AS int), "
    f"timestampadd(MILLISECOND, CAST(pmod({{value}}, {MICROS_PER_DAY}) DIV 1000 AS int), "
    "timestampadd(MICROSECOND, CAST(pmod({value}, 1000) AS int), timestamp_ntz'1970-01-01 00:00:00')))"
)
"""The timestamp without time zone of a number of microseconds since 1970, for every bigint. A single addition would be
enough for Spark 4.3, but not for 3.5, in which it takes only an int."""


@dataclass(frozen=True, slots=True)
class TimeType:
    """A type of dates or times, with templates of expressions in which `{value}` is the value of a column.

    Types of one `family` convert into each other. `micros` is the number of microseconds since 1970, for a date those
    of its midnight, for a time of day since midnight. `from_micros` is the inverse, rounded down to the unit of the
    column. `number` is the column's value as the Avro type `base` without logical type, `from_number` the inverse.
    `shown` is the value in the view.
    """

    base: PrimitiveType
    family: str
    micros: str
    from_micros: str
    number: str = "{value}"
    from_number: str = "{value}"
    shown: str = "{value}"


INSTANT: Final = "instant"
"""Instants, local times and dates. A local time is taken as UTC, a date as its midnight in UTC."""

TIME_OF_DAY: Final = "time of day"

_INT, _LONG = PrimitiveType.INT, PrimitiveType.LONG
TIMES: Final[Mapping[str, TimeType]] = MappingProxyType(
    {
        "date": TimeType(
            _INT,
            INSTANT,
            micros=f"try_multiply(CAST(unix_date({{value}}) AS bigint), {MICROS_PER_DAY})",
            from_micros=f"date_from_unix_date(CAST({_floor_divided(MICROS_PER_DAY)} AS int))",
            number="unix_date({value})",
            from_number="date_from_unix_date({value})",
        ),
        "timestamp-millis": TimeType(
            _LONG,
            INSTANT,
            micros="unix_micros({value})",
            from_micros="timestamp_micros({value})",  # the view's timestamps have microseconds, so none are cut off
            number="unix_millis({value})",
            from_number=f"timestamp_micros({_BY_1000})",
        ),
        "timestamp-micros": TimeType(_LONG, INSTANT, "{value}", "{value}", shown="timestamp_micros({value})"),
        "timestamp-nanos": TimeType(_LONG, INSTANT, _DIV_1000, _BY_1000, shown=f"timestamp_micros({_DIV_1000})"),
        "local-timestamp-millis": TimeType(
            _LONG, INSTANT, _BY_1000, _DIV_1000, shown=_LOCAL_TIME.replace("{value}", _BY_1000)
        ),
        "local-timestamp-micros": TimeType(_LONG, INSTANT, "{value}", "{value}", shown=_LOCAL_TIME),
        "local-timestamp-nanos": TimeType(
            _LONG, INSTANT, _DIV_1000, _BY_1000, shown=_LOCAL_TIME.replace("{value}", _DIV_1000)
        ),
        "time-millis": TimeType(_INT, TIME_OF_DAY, "(CAST({value} AS bigint) * 1000)", f"try_cast({_DIV_1000} AS int)"),
        "time-micros": TimeType(_LONG, TIME_OF_DAY, "{value}", "{value}"),
    }
)
"""By logical type, the expressions for a type of dates or times."""

_JULIAN_LAG: Final = "floor((3 * floor((4L * {days} + 2877875) / 146097) - 5) / 4)"
"""The days from a date of the Julian calendar to the Gregorian day with the same year, month and day number, for the
number of this day since 1970. 4 * days + 2877875 is four times the days since 0000-03-01, plus three to round; a
century has 146,097 quarters of a day. Three of four centuries add a day; the first has -2."""

_DATE_LAG: Final = _JULIAN_LAG.replace("{days}", "unix_date({value})")
_MILLIS_LAG: Final = _JULIAN_LAG.replace("{days}", "floor(unix_millis({value}) / 86400000)")
CORRECTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "date": f"IF({{value}} < DATE'1582-10-15', date_add({{value}}, CAST({_DATE_LAG} AS int)), {{value}})",
        "timestamp-millis": "IF(unix_millis({value}) < -12219292800000, "
        f"timestamp_millis(unix_millis({{value}}) + 86400000 * {_MILLIS_LAG}), {{value}})",
    }
)
"""By logical type, the expression for the value that was sent, where Spark reads another one from a column: it shows a
day before 1582-10-15 as the day with the same date in the Julian calendar. Spark shows a Julian 29th of February that
the Gregorian calendar does not have as the 1st of March, so the correction takes it for the next day. There are twelve
such days since the year 1, from 0100-02-27 to 1500-03-10."""


_ISO_DATE: Final = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_ISO_TIME: Final = f"{_ISO_DATE}[T ][0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}([.][0-9]+)?"
_ISO_ZONE: Final = "(Z|[+-][0-9]{2}:[0-9]{2})"


def _micros_of_text(pattern: str, text: str) -> str:
    """Returns a template for the microseconds since 1970 of a text. Spark also accepts incomplete texts, such as a year
    or a time of today; `pattern` excludes them.

    Args:
        pattern: regular expression of the texts that are converted.
        text: template of a text that Spark can read as a timestamp in any session.
    """
    return f"unix_micros(IF({{value}} RLIKE '^{pattern}$', try_cast({text} AS timestamp), NULL))"


MICROS_OF_TEXT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "date": _micros_of_text(_ISO_DATE, "concat({value}, 'T00:00:00Z')"),
        **dict.fromkeys(
            ("timestamp-millis", "timestamp-micros", "timestamp-nanos"),
            _micros_of_text(_ISO_TIME + _ISO_ZONE, "{value}"),
        ),
        **dict.fromkeys(
            ("local-timestamp-millis", "local-timestamp-micros", "local-timestamp-nanos"),
            _micros_of_text(_ISO_TIME, "concat({value}, 'Z')"),
        ),
    }
)
"""By the present type, the microseconds of a text in ISO 8601. A text without offset is no instant, and one with an
offset no local time."""

_ISO_OF_MICROS: Final = f"replace(CAST({_LOCAL_TIME} AS string), ' ', 'T')"
TEXT_OF_MICROS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(("timestamp-millis", "timestamp-micros", "timestamp-nanos"), f"concat({_ISO_OF_MICROS}, 'Z')"),
        **dict.fromkeys(("local-timestamp-millis", "local-timestamp-micros", "local-timestamp-nanos"), _ISO_OF_MICROS),
    }
)
"""By the type of a sibling, the text of its microseconds in ISO 8601, instants in UTC. (The text of a date is a plain
cast.)"""

_CAST: Final = "try_cast({value} AS {to})"
_EXACT_CAST: Final = f"CASE WHEN try_cast({_CAST} AS {{from}}) = {{value}} THEN {_CAST} END"
_EXACT_CAST_OF_TEXT: Final = (
    f"CASE WHEN try_cast({_CAST} AS {{wide}}) = try_cast({{value}} AS {{wide}}) THEN {_CAST} END"
)
_TRUTH: Final = "CASE {value} WHEN 1 THEN true WHEN 0 THEN false END"


def _integer_of_fraction(limit: str) -> str:
    """Returns a template that converts whole floating-point numbers from -`limit` to below `limit`. A cast would also
    convert `limit` itself, which is the first number that the integer type lacks."""
    number = "CAST({value} AS double)"
    return (
        f"CASE WHEN rint({number}) = {number} AND {number} >= -{limit} AND {number} < {limit} "
        f"THEN try_cast({number} AS {{to}}) END"
    )


NUMBERS: Final[Mapping[tuple[str, str], str]] = MappingProxyType(
    {
        ("integer", "int"): _CAST,
        ("integer", "long"): _CAST,
        ("integer", "float"): _CAST,
        ("integer", "double"): _CAST,
        ("integer", "decimal"): _CAST,
        ("integer", "boolean"): _TRUTH,
        ("integer", "string"): _CAST,
        ("fraction", "int"): _integer_of_fraction("2147483648D"),
        ("fraction", "long"): _integer_of_fraction("9223372036854775808D"),
        # A cast to float makes a larger double infinite.
        ("fraction", "float"): f"IF(abs({_CAST}) = double('Infinity') AND abs({{value}}) < double('Infinity'), "
        f"NULL, {_CAST})",
        ("fraction", "double"): _CAST,
        ("fraction", "decimal"): _CAST,
        ("fraction", "boolean"): _TRUTH,
        ("fraction", "string"): _CAST,
        ("decimal", "int"): _EXACT_CAST,
        ("decimal", "long"): _EXACT_CAST,
        ("decimal", "float"): _CAST,
        ("decimal", "double"): _CAST,
        ("decimal", "decimal"): _EXACT_CAST,
        ("decimal", "boolean"): _TRUTH,
        ("decimal", "string"): _CAST,
        ("boolean", "int"): _CAST,
        ("boolean", "long"): _CAST,
        ("boolean", "float"): _CAST,
        ("boolean", "double"): _CAST,
        ("boolean", "decimal"): _CAST,
        ("boolean", "string"): _CAST,
        ("string", "int"): _CAST,
        ("string", "long"): _CAST,
        ("string", "float"): _CAST,
        ("string", "double"): _CAST,
        ("string", "decimal"): _EXACT_CAST_OF_TEXT,
        ("string", "boolean"): _CAST,
        ("string", "enum"): "{value}",
        ("enum", "string"): "{value}",
        ("enum", "enum"): "{value}",
        ("string", "bytes"): "CAST({value} AS binary)",  # in UTF-8
        ("fixed", "bytes"): "{value}",
        ("bytes", "fixed"): "IF(octet_length({value}) = {size}, {value}, NULL)",
        ("fixed", "fixed"): "IF(octet_length({value}) = {size}, {value}, NULL)",
    }
)
"""By kind of the sibling (as in `GROUPS`) and of the present column, the expression. `{from}` and `{to}` are their Hive
types. `{wide}` is the decimal type with as many digits before the point as `{to}` and the most digits after it."""

GROUPS: Final[Mapping[str, str]] = MappingProxyType(
    {"int": "integer", "long": "integer", "float": "fraction", "double": "fraction"}
)
"""Kinds of siblings that share the rows of `NUMBERS`."""

UNSCALED_BYTES_MAX: Final = 16
_UNSCALED: Final = (
    # Sign-extended to 32 hexadecimal digits, then the sum of both halves: conv() converts at most 64 bits.
    "transform(transform(array(hex({value})), h -> lpad(h, 32, IF(left(h, 1) >= '8', 'F', '0'))), h -> "
    "try_add(try_multiply(CAST(conv(left(h, 16), 16, -10) AS decimal(20,0)), 18446744073709551616BD), "
    "CAST(conv(right(h, 16), 16, 10) AS decimal(20,0))))[0]"
)
_DECIMAL_OF_BYTES: Final = (
    f"IF(octet_length({{value}}) BETWEEN 1 AND {UNSCALED_BYTES_MAX}, "
    f"try_cast(concat(CAST({_UNSCALED} AS string), 'E-{{scale}}') AS decimal({DECIMAL_PRECISION_MAX},{{scale}})), NULL)"
)
"""The decimal whose digits are the big-endian two's complement in a binary column."""


PATH: Final = re.compile(r"(x\d+|`([^`]|``)+`)(\.`([^`]|``)+`)*")
"""An expression that only names a column, a variable or a member of one."""


def corrected(column: Type, value: str, depth: int = 0) -> str:
    """Returns the expression for the values of a column that were sent (`CORRECTIONS`), `value` itself if Spark reads
    them rightly.

    Args:
        column: the type of the column.
        value: the path of the column, without conversions.
        depth: the number of lists and maps around the type.
    """
    inner, _ = split(column)
    if isinstance(inner, Record):
        parts = {field.name: corrected(field.type, member(value, field), depth) for field in inner.fields}
        if all(parts[field.name] == member(value, field) for field in inner.fields):
            return value
        return f"IF({value} IS NULL, NULL, {_struct(inner, parts)})"
    if isinstance(inner, Array | Map):
        variable = f"x{depth}"
        part = corrected(inner.items if isinstance(inner, Array) else inner.values, variable, depth + 1)
        function = "transform" if isinstance(inner, Array) else "transform_values"
        names = variable if isinstance(inner, Array) else f"(k{depth}, {variable})"
        return value if part == variable else f"{function}({value}, {names} -> {part})"
    template = CORRECTIONS.get(_kind(inner))
    return value if template is None else _filled(template, value=value)


def shown(column: Type, value: str) -> str:
    """Returns the expression with which the view shows a top-level column: numbers with a time type as timestamps.

    Args:
        column: the type of the column.
        value: expression for a value of the column.
    """
    time = TIMES.get(_kind(split(column)[0]))
    return value if time is None else bound(value, 0, lambda name, _: _filled(time.shown, value=name))


def bound(value: str, depth: int, body: Callable[[str, int], str]) -> str:
    """Returns an expression that uses a value several times, without repeating a long expression for it.

    Args:
        value: the expression for the value.
        depth: number of enclosing lambda functions.
        body: returns the expression for a name of the value and a depth.
    """
    if PATH.fullmatch(value):
        return body(value, depth)
    text = body(f"x{depth}", depth + 1)
    return value if text == f"x{depth}" else f"transform(array({value}), x{depth} -> {text})[0]"


def converted(source: Type, target: Type, value: str, depth: int = 0) -> str | None:
    """Returns an expression that converts values of a column to the type of another one, None if the types have no
    common meaning.

    Args:
        source: the type of the column.
        target: the type of the other column.
        value: expression for a value of the column.
        depth: the number of lists and maps around the types.
    """
    source, target = split(source)[0], split(target)[0]
    if kind_of(source) == MEMBERS and isinstance(source, Record):
        kept = [one for one in source.fields if not is_another_type(one.type, target)]
        found = [converted(one.type, target, member(value, one), depth) for one in kept]
        parts = [part for part in found if part is not None]
        return f"coalesce({', '.join(parts)})" if parts else None
    if kind_of(target) == MEMBERS and isinstance(target, Record):
        return _into_union(source, target, value, depth)
    match source, target:
        case Array(), Array():
            part = converted(source.items, target.items, f"x{depth}", depth + 1)
            template = "transform({value}, x{depth} -> {part})"
        case Map(), Map():
            part = converted(source.values, target.values, f"x{depth}", depth + 1)
            template = "transform_values({value}, (k{depth}, x{depth}) -> {part})"
        case Record(), Record():
            return _record(source, target, value, depth)
        case _:
            return _plain(source, target, value)
    if part is None or part == f"x{depth}":
        return part and value
    return _filled(template, value=value, depth=str(depth), part=part)


def is_another_type(one: Type, other: Type) -> bool:
    """Whether two types, at least one of them a branch of a union, are named types without a common full name. A value
    of one is then no value of the other, even if they have the same members: `orders.Created` and `users.Created` may
    be branches of one union."""
    (one, _), (other, _) = split(one), split(other)
    if not isinstance(one, Record | Enum | Fixed) or not isinstance(other, Record | Enum | Fixed):
        return False
    if MEMBERS in (kind_of(one), kind_of(other)):
        return False
    return set(accepted_names(one)).isdisjoint(accepted_names(other))


def _into_union(source: Type, target: Record, value: str, depth: int) -> str | None:
    """Returns an expression for a record of members (a union with several types) in which one member has the value: the
    member of the same type, else the first one to which the value can be converted."""
    members = [field for field in target.fields if not is_another_type(source, field.type)]
    candidates = [(field, converted(source, field.type, value, depth)) for field in members]
    possible = [(field, part) for field, part in candidates if part is not None]
    chosen = next((one for one in possible if one[1] == value), possible[0] if possible else None)
    if chosen is None:
        return None
    parts = {field.name: part for field, part in (chosen,)}
    # A null of the plain column is a null of the union, not a record without a value.
    return f"IF({chosen[1]} IS NULL, NULL, {_struct(target, parts)})"


def _record(source: Record, target: Record, value: str, depth: int) -> str | None:
    """Returns an expression for a record whose members come from the members of `source` with the same names. Others
    are null."""
    by_name = {field.name.lower(): field for field in source.fields}
    parts: dict[str, str] = {}
    for field in target.fields:
        other = by_name.get(field.name.lower())
        part = other and converted(other.type, field.type, member(value, other), depth)
        if part:
            parts[field.name] = part
    if not parts:
        return None
    is_same = _type_name(source) == _type_name(target)
    if is_same and all(parts.get(field.name) == member(value, field) for field in target.fields):
        return value
    return f"IF({value} IS NULL, NULL, {_struct(target, parts)})"


def _struct(record: Record, parts: Mapping[str, str]) -> str:
    members = (
        f"{quote_literal(field.name.lower())}, {parts.get(field.name) or f'CAST(NULL AS {_type_name(field.type)})'}"
        for field in record.fields
    )
    return f"named_struct({', '.join(members)})"


def _plain(source: Type, target: Type, value: str) -> str | None:
    """Returns an expression that converts values of a type without parts, None if the types have no common meaning."""
    from_kind, to_kind = _kind(source), _kind(target)
    if (
        from_kind == to_kind
        and from_kind
        and _size(source) == _size(target)
        and _type_name(source) == _type_name(target)
    ):
        return value
    if from_kind in TIMES or to_kind in TIMES:
        return _time(from_kind, to_kind, value)
    scale = _unscaled_scale(source, target)
    if scale is not None and to_kind == "decimal":
        decimal = _filled(_DECIMAL_OF_BYTES, value=value, scale=str(scale))
        wide = {"from": f"decimal({DECIMAL_PRECISION_MAX},{scale})", "to": _type_name(target)}
        return _filled(NUMBERS["decimal", "decimal"], value=decimal, **wide)
    template = NUMBERS.get((GROUPS.get(from_kind, from_kind), to_kind))
    if template is None:
        return None
    names = {"from": _type_name(source), "to": _type_name(target), "size": str(_size(target)), "wide": _wide(target)}
    return _filled(template, value=value, **names)


def _time(from_kind: str, to_kind: str, value: str) -> str | None:
    source, target = TIMES.get(from_kind), TIMES.get(to_kind)
    if source is not None and target is not None:
        if source.family != target.family:
            return None
        if (source.micros, source.from_micros) == (target.micros, target.from_micros):
            return value  # both columns have the same number, perhaps with more digits than microseconds
        return _filled(target.from_micros, value=_filled(source.micros, value=value))
    if target is not None:
        if from_kind == "string" and to_kind in MICROS_OF_TEXT:
            return _filled(target.from_micros, value=_filled(MICROS_OF_TEXT[to_kind], value=value))
        return _filled(target.from_number, value=value) if from_kind == target.base.value else None
    assert source is not None
    if to_kind == "string":
        template = "CAST({value} AS string)" if from_kind == "date" else TEXT_OF_MICROS.get(from_kind)
        micros = value if from_kind == "date" else _filled(source.micros, value=value)
        return template and _filled(template, value=micros)
    return _filled(source.number, value=value) if to_kind == source.base.value else None


def _kind(node: Type) -> str:
    """Returns the name of a type in the tables: a logical type, an Avro type, or "" for a type without conversions."""
    if isinstance(node, Enum):
        return "enum"
    if isinstance(node, Fixed):
        return "fixed" if node.logical is None else ""
    if not isinstance(node, Primitive) or kind_of(node) is not None:
        return ""
    if node.logical is not None:
        return node.logical.name if node.logical.name in TIMES or node.logical.name == "decimal" else ""
    return node.type.value


def _unscaled_scale(source: Type, target: Type) -> int | None:
    """Returns the scale of the decimals in a binary column, None if it contains none: that of a decimal on fixed, or of
    a decimal with more digits than Hive can hold. Plain bytes have the scale of the decimal that the field is now."""
    if isinstance(source, Fixed) and source.logical is not None and source.logical.name == "decimal":
        scale = source.logical.scale or 0
    elif isinstance(source, Primitive) and kind_of(source) == UNSCALED:
        scale = int(str(prop(source.props, DECIMAL)).partition(",")[2])
    elif _kind(source) == "bytes" and isinstance(target, Primitive) and target.logical is not None:
        scale = target.logical.scale or 0
    else:
        return None
    return scale if scale <= DECIMAL_PRECISION_MAX else None


def _wide(target: Type) -> str:
    if not isinstance(target, Primitive) or target.logical is None or target.logical.precision is None:
        return ""
    before_point = target.logical.precision - (target.logical.scale or 0)
    return f"decimal({DECIMAL_PRECISION_MAX},{DECIMAL_PRECISION_MAX - before_point})"


def _size(node: Type) -> int:
    return node.size if isinstance(node, Fixed) else 0


def _type_name(node: Type) -> str:
    inner, _ = split(node)
    return hive_type(Schema(inner), inner)


def member(path: str, field: Field) -> str:
    """Returns the expression for a column, or for a member of the record at `path`."""
    name = quote_identifier(field.name.lower())
    return f"{path}.{name}" if path else name


def _filled(template: str, **parts: str) -> str:
    """Returns a template with its placeholders replaced. (`str.format` would trip over the braces of texts in it.)"""
    return re.sub(r"\{(\w+)\}", lambda match: parts.get(match[1], match[0]), template)
