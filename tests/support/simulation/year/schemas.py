"""Evolving records whose values show to which field they belong, so that a value in a wrong column is detected."""

from __future__ import annotations

import dataclasses
import json
import random
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PROMOTIONS: Mapping[str, tuple[str, ...]] = {
    "int": ("long", "float", "double"),
    "long": ("double",),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
KINDS = ("int", "long", "float", "double", "string", "bytes", "array", "map", "record", "union")
DEFAULTS: Mapping[str, Any] = {"string": "", "bytes": "", "array": [], "map": {}, "float": 0.0, "double": 0.0}
MARK = re.compile(r"m(\d+)")
FIELDS_MAX = 14

TIMES = ("timestamp", "header", "micros", "property", "record")
"""The kinds of fields from which the message time is taken, such as a field `timestamp` or the record's own timestamp.
"""


@dataclass(frozen=True, slots=True)
class EvolvingField:
    """A field of an evolving record.

    Attributes:
        meaning: a number in all of its values (their mark), which stays the same when the field is renamed.
        inner: the fields of its type, if that is a record.
    """

    name: str
    kind: str
    meaning: int
    is_nullable: bool = False
    aliases: tuple[str, ...] = ()
    inner: tuple[EvolvingField, ...] = ()

    def avro(self) -> dict[str, Any]:
        kind: Any = self.kind
        default: Any = DEFAULTS.get(self.kind, 0)
        if self.kind == "array":
            kind = {"type": "array", "items": "int"}
        elif self.kind == "map":
            kind = {"type": "map", "values": "string"}
        elif self.kind == "record":
            kind = {"type": "record", "name": f"R{self.meaning}", "fields": [one.avro() for one in self.inner]}
            default = {one.name: one.avro()["default"] for one in self.inner}
        elif self.kind == "union":
            kind, default = ["null", "int", "string"], None
        if self.is_nullable and self.kind != "union":
            kind, default = ["null", kind], None
        field = {"name": self.name, "type": kind, "default": default}
        return {**field, "aliases": list(self.aliases)} if self.aliases else field

    def value(self, n: int) -> Any:
        """Returns the value in message number n, in the form of fastavro: a pair of branch name and value for a
        union."""
        if self.is_nullable and n % 5 == 0:
            return None
        value = self._plain_value(n)
        if not self.is_nullable or self.kind == "union":
            return value
        return (f"R{self.meaning}" if self.kind == "record" else self.kind, value)

    def _plain_value(self, n: int) -> Any:
        mark = self.meaning * 1000 + 1 + n % 997
        match self.kind:
            case "int" | "long":
                return mark
            case "float" | "double":
                return float(mark)
            case "string":
                return f"m{mark}"
            case "bytes":
                return b"m%d" % mark
            case "array":
                return [mark] * (n % 3)
            case "map":
                return {"k": f"m{mark}"}
            case "union":
                return ("int", mark) if n % 2 else ("string", f"m{mark}")
        return {one.name: one.value(n) for one in self.inner}


@dataclass(frozen=True, slots=True)
class EvolvingRecord:
    """One version of a topic's schema. `time` is the kind of its time field, one of `TIMES`."""

    name: str
    time: str
    fields: tuple[EvolvingField, ...]

    def text(self) -> str:
        fields: list[dict[str, Any]] = [{"name": "n", "type": "long"}]
        fields += {
            "timestamp": [{"name": "timestamp", "type": "long"}],
            "micros": [{"name": "timestamp", "type": {"type": "long", "logicalType": "timestamp-micros"}}],
            "property": [{"name": "happened", "type": "long"}],
            "header": [
                {
                    "name": "header",
                    "type": {"type": "record", "name": "Header", "fields": [{"name": "time", "type": "long"}]},
                }
            ],
            "record": [],
        }[self.time]
        fields += [one.avro() for one in self.fields]
        return json.dumps({"type": "record", "name": self.name, "fields": fields})

    def value(self, n: int, time: int) -> dict[str, Any]:
        """Returns message number n in the form of fastavro.

        Args:
            time: the value of its time field, in that field's unit.
        """
        value: dict[str, Any] = {"n": n, **{one.name: one.value(n) for one in self.fields}}
        match self.time:
            case "timestamp" | "micros":
                value["timestamp"] = time
            case "property":
                value["happened"] = time
            case "header":
                value["header"] = {"time": time}
        return value

    @property
    def units_per_ms(self) -> int:
        return 1000 if self.time == "micros" else 1


def first_version(name: str, time: str, chance: random.Random) -> EvolvingRecord:
    fields = tuple(_new_field(f"f{meaning}", meaning, chance) for meaning in range(1, chance.randint(2, 5)))
    return EvolvingRecord(name, time, fields)


def _new_field(name: str, meaning: int, chance: random.Random, *, within: bool = False) -> EvolvingField:
    kind = chance.choice([one for one in KINDS if not (within and one == "record")])
    inner: tuple[EvolvingField, ...] = ()
    if kind == "record":
        inner = tuple(
            _new_field(f"i{number}", meaning * 10 + number, chance, within=True)
            for number in range(chance.randint(1, 3))
        )
    return EvolvingField(name, kind, meaning, chance.random() < 0.3, inner=inner)


def next_version(record: EvolvingRecord, version: int, chance: random.Random) -> EvolvingRecord:
    """Returns a next version of the record, which is compatible.

    Args:
        version: the number of this version, used in the names of new fields.
    """
    fields = list(record.fields)
    at = chance.randrange(len(fields))
    one = fields[at]
    change = chance.choice(("add", "add", "remove", "promote", "rename", "nullable", "inside"))
    if change == "add" and len(fields) >= FIELDS_MAX:
        change = "remove"
    if change == "remove" and len(fields) > 2:
        del fields[at]
    elif change == "promote" and one.kind in PROMOTIONS:
        fields[at] = dataclasses.replace(one, kind=chance.choice(PROMOTIONS[one.kind]))
    elif change == "rename" and one.kind not in ("record", "union"):
        fields[at] = dataclasses.replace(one, name=f"g{version}_{one.meaning}", aliases=(one.name, *one.aliases))
    elif change == "nullable" and not one.is_nullable:
        fields[at] = dataclasses.replace(one, is_nullable=True)
    elif change == "inside" and one.kind == "record":
        more = _new_field(f"j{version}", one.meaning * 10 + len(one.inner), chance, within=True)
        fields[at] = dataclasses.replace(one, inner=(*one.inner, more))
    else:
        fields.append(_new_field(f"f{100 + version}", 100 + version, chance))
    return dataclasses.replace(record, fields=tuple(fields))


def marks(value: Any) -> Counter[int]:
    """Returns the marks of the values in a message or row, which identify fields; defaults have no mark."""
    found: Counter[int] = Counter()
    _collect(value, found)
    return found


NOT_MARKED = frozenset({"n", "timestamp", "happened", "header", "kafka", "kafka__position"})


def _collect(value: Any, found: Counter[int]) -> None:
    match value:
        case dict():
            for name, inner in value.items():
                if name not in NOT_MARKED:
                    _collect(inner, found)
        case (str(), inner):
            _collect(inner, found)
        case list():
            for inner in value:
                _collect(inner, found)
        case bytes():
            _collect(value.decode(), found)
        case str():
            mark = MARK.fullmatch(value)
            if mark:
                found[int(mark[1])] += 1
        case int() | float():
            if value > 0:
                found[round(value)] += 1
