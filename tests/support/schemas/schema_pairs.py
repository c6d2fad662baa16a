"""Random reader/writer pairs for differential tests: a schema, and the same schema after a few typical changes.

Both texts are valid Avro. The vocabulary is small, so that names, fields and symbols often match.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
NAMES = ("A", "B", "C", "D", "E", "F")
SPACES = ("w", "x", "y.z")
FIELDS = ("a", "b", "c", "d", "e")
SYMBOLS = ("P", "Q", "R", "S", "T")
DEPTH_MAX = 4


def schema_pairs(seed: int, count: int) -> Iterator[tuple[str, str]]:
    """Yields `count` pairs of schema texts. The same seed gives the same pairs."""
    for index in range(count):
        rng = random.Random(f"{seed}/{index}")
        reader = _type(rng, 0)
        writer = _type(rng, 0) if rng.random() < 0.1 else copy.deepcopy(reader)
        for _ in range(rng.choice((0, 1, 1, 2, 3, 5))):
            writer = _mutate(rng, writer)
        has_namespaces = rng.random() < 0.7
        pair = [json.dumps(_Repair(rng, has_namespaces).type(node)) for node in (reader, writer)]
        if rng.random() < 0.5:
            pair.reverse()
        yield pair[0], pair[1]


def _type(rng: random.Random, depth: int) -> Any:
    kinds = ["record"] * 6 + ["enum"] * 3 + ["fixed", "array", "map", "union", "union"] if depth < DEPTH_MAX else []
    if depth:
        kinds += ["primitive"] * 5 + ["name"] * 4
    kind = rng.choice(kinds)
    if kind == "primitive":
        return rng.choice(PRIMITIVES)
    if kind == "name":
        return {"ref": rng.choice(NAMES), "space": rng.choice(SPACES)}
    if kind == "array":
        return {"type": "array", "items": _type(rng, depth + 1)}
    if kind == "map":
        return {"type": "map", "values": _type(rng, depth + 1)}
    if kind == "union":
        return [_type(rng, depth + 1) for _ in range(rng.randint(0, 4))]
    return _named(rng, kind, depth)


def _named(rng: random.Random, kind: str, depth: int) -> dict[str, Any]:
    node: dict[str, Any] = {"type": kind, "name": rng.choice(NAMES), "namespace": rng.choice(SPACES)}
    if rng.random() < 0.2:
        node["aliases"] = [_alias(rng)]
    if kind == "record":
        names = rng.sample(FIELDS, rng.randint(0, 4))
        node["fields"] = [_field(rng, name, depth) for name in names]
        if rng.random() < 0.05:
            node["type"] = "error"
    elif kind == "enum":
        node["symbols"] = rng.sample(SYMBOLS, rng.randint(1, 4))
        node["has_default"] = rng.random() < 0.5
    else:
        node["size"] = rng.choice((1, 4, 8))
    return node


def _field(rng: random.Random, name: str, depth: int) -> dict[str, Any]:
    field = {"name": name, "type": _type(rng, depth + 1), "has_default": rng.random() < 0.4}
    if rng.random() < 0.07:
        field["aliases"] = rng.sample(FIELDS, rng.choice((1, 1, 2)))
    return field


def _alias(rng: random.Random) -> str:
    space = rng.choice(SPACES)
    name = rng.choice(NAMES)
    return f"{space}.{name}" if space else name


def _mutate(rng: random.Random, root: Any) -> Any:
    """Returns the tree with one random change at one random node."""
    places = list(_places(root, lambda _: None, 0))
    node, put, depth = rng.choice(places)
    choice = rng.random()
    if choice < 0.15:
        replacement = _type(rng, min(depth, DEPTH_MAX))
    elif choice < 0.25:
        replacement = ["null", *(node if isinstance(node, list) else [node])]
    elif choice < 0.3 and isinstance(node, list) and node:
        replacement = rng.choice(node)
    else:
        replacement = _change(rng, copy.deepcopy(node), depth)
    if put(replacement) is None and node is root:
        return replacement
    return root


def _change(rng: random.Random, node: Any, depth: int) -> Any:
    if isinstance(node, list):
        rng.shuffle(node)
        return node[:-1] if rng.random() < 0.3 else [*node, _type(rng, depth + 1)]
    if not isinstance(node, dict):
        return rng.choice(PRIMITIVES)
    if "fields" in node:
        return _change_record(rng, node, depth)
    if "symbols" in node:
        node["symbols"] = rng.sample(SYMBOLS, rng.randint(1, 4))
    elif "size" in node:
        node["size"] = rng.choice((1, 4, 8))
    if "name" in node and rng.random() < 0.3:
        node["name"] = rng.choice(NAMES)
    return node


def _change_record(rng: random.Random, node: dict[str, Any], depth: int) -> Any:
    fields = node["fields"]
    choice = rng.choice(("add", "remove", "default", "rename", "alias", "name", "space", "shuffle"))
    if choice == "add":
        fields.append(_field(rng, rng.choice(FIELDS), depth))
    elif choice == "name":
        node["name"] = rng.choice(NAMES)
    elif choice == "space":
        node["namespace"] = rng.choice(SPACES)
    elif not fields:
        return node
    elif choice == "shuffle":
        rng.shuffle(fields)
    elif choice == "remove":
        fields.pop(rng.randrange(len(fields)))
    else:
        field = rng.choice(fields)
        old = field["name"]
        if choice == "default":
            field["has_default"] = not field["has_default"]
        elif choice == "rename":
            field["name"] = rng.choice(FIELDS)
        if choice in ("alias", "rename") and rng.random() < 0.5:
            field["aliases"] = [old if choice == "rename" else rng.choice(FIELDS)]
    return node


Put = Callable[[Any], Any]


def _places(node: Any, put: Put, depth: int) -> Iterator[tuple[Any, Put, int]]:
    """Yields every type in a schema, with a function that replaces it there, and its depth."""
    yield node, put, depth
    slots: list[tuple[Any, Any]] = []
    if isinstance(node, list):
        slots = [(node, index) for index in range(len(node))]
    elif isinstance(node, dict):
        slots = [(node, key) for key in ("items", "values") if key in node]
        slots += [(field, "type") for field in node.get("fields", ())]
    for owner, key in slots:
        yield from _places(owner[key], _setter(owner, key), depth + 1)


def _setter(owner: Any, key: Any) -> Put:
    def put(value: Any) -> bool:
        owner[key] = value
        return True

    return put


class _Repair:
    """Converts a generated tree to a valid schema: each name is defined once and before its use, unions are not nested,
    and defaults match their types."""

    def __init__(self, rng: random.Random, has_namespaces: bool) -> None:
        self.rng = rng
        self.has_namespaces = has_namespaces
        self.known: dict[str, Any] = {}
        self.open: set[str] = set()

    def type(self, node: Any, in_union: bool = False) -> Any:
        if isinstance(node, list):
            return "int" if in_union else self.union(node)
        if not isinstance(node, dict):
            return node
        if "ref" in node:
            full = self.full(node["ref"], node["space"])
            return full if full in self.known else self.rng.choice(list(self.known) or ["string"])
        if node["type"] in ("array", "map"):
            key = "items" if node["type"] == "array" else "values"
            return {"type": node["type"], key: self.type(node[key])}
        return self.named(node)

    def union(self, node: list[Any]) -> list[Any]:
        """Returns the branches of a union without those that conflict with an earlier branch. The definition of a name
        is never among those dropped, because a second occurrence of it is only a reference."""
        branches: dict[str, Any] = {}
        for item in node:
            if isinstance(item, dict) and item.get("type") in branches:
                continue
            branch = self.type(item, in_union=True)
            branches.setdefault(_branch_key(branch), branch)
        return list(branches.values())

    def full(self, name: str, space: str) -> str:
        return f"{space}.{name}" if self.has_namespaces else name

    def named(self, node: dict[str, Any]) -> Any:
        full = self.full(node["name"], node["namespace"])
        if full in self.known:
            return full
        out = {key: node[key] for key in ("type", "name", "namespace", "aliases", "symbols", "size") if key in node}
        if not self.has_namespaces:
            out["namespace"] = ""
        self.known[full] = out
        if "symbols" in node and node["has_default"]:
            out["default"] = node["symbols"][0]
        if "fields" in node:
            out["fields"] = []
            self.open.add(full)
            fields = {field["name"]: field for field in node["fields"]}
            out["fields"] = [self.field(field) for field in fields.values()]
            self.open.discard(full)
        return out

    def field(self, field: dict[str, Any]) -> dict[str, Any]:
        out = {"name": field["name"], "type": self.type(field["type"])}
        if "aliases" in field:
            out["aliases"] = field["aliases"]
        if field["has_default"]:
            default = self.default(out["type"])
            if default is not _NO_DEFAULT:
                out["default"] = default
        return out

    def default(self, node: Any) -> Any:
        if isinstance(node, list):
            return self.default(node[0]) if node else _NO_DEFAULT
        if isinstance(node, str) and node in PRIMITIVES:
            return _DEFAULTS[node]
        full = node if isinstance(node, str) else _full_name(node)
        known = self.known.get(full, node)
        if known["type"] in ("array", "map"):
            return [] if known["type"] == "array" else {}
        if "symbols" in known:
            return known["symbols"][-1]
        if "size" in known:
            return "\x01" * known["size"]
        return _NO_DEFAULT if known["fields"] or full in self.open else {}


_NO_DEFAULT = object()
_DEFAULTS: dict[str, Any] = {
    "null": None, "boolean": True, "int": 1, "long": 2, "float": 0.5, "double": 1.5, "bytes": "b", "string": "s",
}  # fmt: skip


def _branch_key(branch: Any) -> str:
    if isinstance(branch, str):
        return branch
    return _full_name(branch) if "name" in branch else branch["type"]


def _full_name(node: dict[str, Any]) -> str:
    """Returns the full name of a named type in a schema; "" for an array or map."""
    space = node.get("namespace")
    return f"{space}.{node['name']}" if space else node.get("name", "")
