"""Generates pairs of a real schema and the same schema after a few realistic changes, for comparisons of two
implementations.

Also reduces a pair on which their verdicts differ to a readable size.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from headrace.avro_schema import SchemaParseError, parse_schema
from support.checkout import ROOT
from support.schemas.schema_pairs import PRIMITIVES

SHRINK_ROUNDS_MAX = 40

Pair = tuple[str, str]


def real_schemas() -> list[Any]:
    files = [*ROOT.glob("pipeline/demo/schemas/*.avsc"), *ROOT.glob("tests/golden/*/*/*/*.avsc")]
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(files)]


def real_pairs(seed: int, count: int) -> Iterator[Pair]:
    """Yields `count` pairs of schema texts. The same seed and files give the same pairs."""
    schemas = real_schemas()
    for index in range(count):
        rng = random.Random(f"real/{seed}/{index}")
        while True:
            reader = rng.choice(schemas)
            writer = copy.deepcopy(reader)
            for _ in range(rng.choice((1, 1, 2, 3))):
                _change(writer, rng)
            pair = [json.dumps(reader), json.dumps(writer)]
            if all(map(_is_schema, pair)):
                break
        rng.shuffle(pair)
        yield pair[0], pair[1]


def _change(schema: Any, rng: random.Random) -> None:
    """Makes one random change to a schema in place, if possible. The result may be invalid, which the caller checks."""
    objects = [node for node in _walk(schema) if isinstance(node, dict)]
    if not objects:
        return
    node = rng.choice(objects)
    if "fields" in node:
        _change_fields(node, rng)
    elif "symbols" in node:
        node["symbols"] = rng.choice([node["symbols"][:-1], [*node["symbols"], "ADDED"], node["symbols"][::-1]])
        if rng.random() < 0.5:
            node["default"] = (node["symbols"] or ["ADDED"])[0]
    elif "size" in node:
        node["size"] += rng.choice((-1, 1))
    elif "type" in node:
        _change_type(node, rng)
    if "name" in node and "type" in node and rng.random() < 0.1:
        old, node["name"] = node["name"], f"{node['name']}_2"
        if rng.random() < 0.6:
            node["aliases"] = [*node.get("aliases", []), old]


def _change_fields(node: dict[str, Any], rng: random.Random) -> None:
    fields = node["fields"]
    choice = rng.choice(("add", "optional", "remove", "shuffle", "namespace"))
    if choice == "add":
        fields.insert(rng.randint(0, len(fields)), {"name": "added", "type": rng.choice(PRIMITIVES)})
    elif choice == "optional":
        fields.append({"name": "added", "type": ["null", rng.choice(PRIMITIVES[1:])], "default": None})
    elif choice == "namespace":
        node["namespace"] = "moved"
    elif choice == "shuffle":
        rng.shuffle(fields)
    elif fields:
        fields.pop(rng.randrange(len(fields)))


def _change_type(node: dict[str, Any], rng: random.Random) -> None:
    """Changes the type of a field: adds or removes null, removes the default, replaces the type, or wraps it in an
    array.
    """
    choice, kind = rng.choice(("null", "default", "other", "array", "order")), node["type"]
    if choice == "default":
        node.pop("default", None)
    elif isinstance(kind, list):
        node.pop("default", None)
        non_null = [branch for branch in kind if branch != "null"]
        node["type"] = (
            kind[::-1] if choice == "order" else non_null[0] if choice == "null" and non_null else [*kind, "bytes"]
        )
    elif choice == "null" and "name" in node:
        node["type"] = ["null", kind]
        node.pop("default", None)
    elif choice == "array" and "name" in node:
        node["type"] = {"type": "array", "items": kind}
        node.pop("default", None)
    elif isinstance(kind, str) and kind in PRIMITIVES:
        node["type"] = rng.choice(PRIMITIVES)
        node.pop("default", None)


def _walk(node: Any) -> Iterator[Any]:
    yield node
    if isinstance(node, list):
        for item in node:
            yield from _walk(item)
    elif isinstance(node, dict):
        for key in ("type", "items", "values", "fields"):
            if isinstance(node.get(key), dict | list):
                yield from _walk(node[key])


def _is_schema(text: str) -> bool:
    try:
        parse_schema(text)
    except SchemaParseError:
        return False
    return True


def shrink_pair(pair: Pair, still_differ: Callable[[Sequence[Pair]], Sequence[bool]]) -> Pair:
    """Removes parts of a pair as long as the verdicts of the two implementations still differ on it. Returns the
    smallest pair found.

    Args:
        still_differ: returns for each of many pairs whether the verdicts differ.
    """
    for _ in range(SHRINK_ROUNDS_MAX):
        smaller = [candidate for candidate in _smaller(pair) if all(map(_is_schema, candidate))]
        differing = [candidate for candidate, is_so in zip(smaller, still_differ(smaller), strict=True) if is_so]
        if not differing:
            break
        pair = min(differing, key=lambda candidate: sum(map(len, candidate)))
    return pair


def _smaller(pair: Pair) -> Iterator[Pair]:
    reader, writer = (json.loads(text) for text in pair)
    for less in (*_types_inside(reader), *_without_a_part(reader)):
        yield json.dumps(less), pair[1]
    for less in (*_types_inside(writer), *_without_a_part(writer)):
        yield pair[0], json.dumps(less)


def _types_inside(node: Any) -> Iterator[Any]:
    return (inner for inner in _walk(node) if inner is not node)


def _without_a_part(node: Any) -> Iterator[Any]:
    """Yields all values that are one step smaller: without one item or member, or with a nested value in place of its
    container."""
    items = list(enumerate(node)) if isinstance(node, list) else list(node.items()) if isinstance(node, dict) else []
    for key, value in items:
        if isinstance(value, dict | list):
            yield value
        for less in (None, *_without_a_part(value)):
            copied = node.copy()
            if less is None:
                del copied[key]
            else:
                copied[key] = less
            yield copied
