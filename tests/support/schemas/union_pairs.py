"""Random reader/writer pairs about unions, for the comparison of reader schemas with Avro Java: the branches in other
orders, narrower and wider numbers, equal short names in two namespaces, aliases, defaults and logical types."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
LOGICAL: dict[str, dict[str, Any]] = {
    "int": {"type": "int", "logicalType": "date"},
    "long": {"type": "long", "logicalType": "timestamp-micros"},
    "bytes": {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 2},
    "string": {"type": "string", "logicalType": "uuid"},
}


def union_pairs(seed: int, count: int) -> Iterator[tuple[str, str]]:
    """Yields `count` pairs of schema texts (reader, writer). The same seed gives the same pairs. Only one of the two
    schemas has logical types: Avro Java ignores them, and which one has them decides the values."""
    for index in range(count):
        rng = random.Random(f"{seed}/union/{index}")
        names = [f"f{number}" for number in range(rng.randint(1, 3))]
        reader, writer = _Schema(rng), _Schema(rng)
        logical = rng.choice((reader, writer, None))
        if logical is not None:
            logical.has_logical = True
        fields = [_field_types(rng) for _ in names]
        yield (
            json.dumps(reader.record("Event", [(name, read) for name, (read, _) in zip(names, fields, strict=True)])),
            json.dumps(
                writer.record("Event", [(name, written) for name, (_, written) in zip(names, fields, strict=True)])
            ),
        )


def _field_types(rng: random.Random) -> tuple[list[str], list[str]]:
    """Returns the branches of one field for reader and writer, as names that `_Schema.branch` defines."""
    known = [*PRIMITIVES, "a.R", "b.R", "c.S", "a.E", "b.E", "a.F", "array", "map"]
    writer = rng.sample(known, rng.randint(1, 5))
    reader = [*writer, *rng.sample(known, rng.randint(0, 3))]
    rng.shuffle(reader)
    if rng.random() < 0.5:
        reader = reader[: rng.randint(1, len(reader))]
    return list(dict.fromkeys(reader)), writer


class _Schema:
    """One of the two schemas. Each of its named types is defined at its first use."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.has_logical = False
        self.defined: set[str] = set()

    def record(self, name: str, fields: list[tuple[str, list[str]]]) -> dict[str, Any]:
        made = [{"name": field, "type": self.union(branches)} for field, branches in fields]
        if self.rng.random() < 0.3:
            made.append({"name": "more", "type": ["long", "null"], "default": self.rng.choice((5, None))})
        return {"type": "record", "name": name, "fields": made}

    def union(self, branches: list[str]) -> Any:
        made = [self.branch(name) for name in branches]
        return made[0] if len(made) == 1 else made

    def branch(self, name: str) -> Any:
        if name in PRIMITIVES:
            return LOGICAL[name] if self.has_logical and name in LOGICAL and self.rng.random() < 0.5 else name
        if name in ("array", "map"):
            inner = self.rng.choice(("int", "long", "double", "string", ["null", "long"], ["double", "int"]))
            return {"type": name, "items" if name == "array" else "values": inner}
        if name in self.defined:
            return name
        self.defined.add(name)
        node: dict[str, Any] = {"name": name}
        if self.rng.random() < 0.15:
            node["aliases"] = [self.rng.choice(("a.R", "b.R", "c.S", "a.E", "a.F", "d.T"))]
        if name.endswith("E"):
            node |= {"type": "enum", "symbols": self.rng.sample(("P", "Q", "T"), 2)}
            return node | ({"default": node["symbols"][0]} if self.rng.random() < 0.5 else {})
        if name.endswith("F"):
            return node | {"type": "fixed", "size": self.rng.choice((2, 2, 2, 3))}
        return node | {"type": "record", "fields": self.fields()}

    def fields(self) -> list[dict[str, Any]]:
        fields: list[dict[str, Any]] = []
        for name in self.rng.sample(("x", "y", "z"), self.rng.randint(1, 3)):
            kind = self.rng.choice(("int", "long", "double", ["long", "double"], ["double", "long"]))
            field: dict[str, Any] = {"name": name, "type": kind}
            if self.rng.random() < 0.6:
                field["default"] = 1.5 if kind in ("double", ["double", "long"]) else 7
            if self.rng.random() < 0.1:
                field["aliases"] = [self.rng.choice(("x", "y", "w"))]
            fields.append(field)
        return fields
