"""What a verdict promises: data written by fastavro is read by Avro Java where we say so, and fails where we say not.

`HEADRACE_COMPAT_PAIRS` and `HEADRACE_COMPAT_SEED` ask for more or other pairs than the ordinary run has.
"""

from __future__ import annotations

import base64
import io
import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import fastavro
import pytest

from headrace.avro_schema import (
    Array,
    Enum,
    Fixed,
    Map,
    NamedType,
    Primitive,
    Record,
    Schema,
    Type,
    Union,
    parse_schema,
    self_contained_text,
    walk,
)
from headrace.compat import VersionedSchema, check_reader_writer
from headrace.compat.lints import LintInput, lint_problems, parse_lints
from headrace.pipeline.java import JavaNotFoundError
from support.checkout import GOLDEN
from support.schemas.avro_java import java_answers
from support.schemas.real_pairs import real_pairs
from support.schemas.schema_pairs import schema_pairs
from support.schemas.strategies import branch_name

PAIRS = int(os.environ.get("HEADRACE_COMPAT_PAIRS", "1500")) // 3
SEED = int(os.environ.get("HEADRACE_COMPAT_SEED", "1"))
DATA = 8
"""Values written with each writer."""

DEPTH_MAX = 12
"""Deepest value; a type that cannot end before has no data here."""

REFUSED_RATIO_MIN = 0.9
"""Of pairs that cannot be read some value must fail in at least this share. In the others no value met the problem, or
it is a name alone: the check compares names which the reader then does not look at."""

DEFAULTS_OF_UNIONS = ("AvroRuntimeException: Not an array:", "AvroRuntimeException: Not a map:")
"""Avro Java cannot take the default of a union whose value is an array or a map."""

PRIMITIVES: dict[str, list[Any]] = {
    "null": [None],
    "boolean": [True, False],
    "int": [0, -1, 2**31 - 1],
    "long": [0, -1, 2**40],
    "float": [0.5, -2.0],
    "double": [0.5, 1e200],
    "bytes": [b"", b"abc"],
    "string": ["", "abc", "é"],
}


class UnboundedValue(Exception):
    """A value that would contain itself without end."""


def value(schema: Schema, node: Type, rng: random.Random, depth: int = 0) -> Any:
    """A value as fastavro writes it; arrays and maps are rarely empty, so that what is in them is met."""
    node = schema.resolve(node)
    if depth > DEPTH_MAX:
        raise UnboundedValue
    match node:
        case Primitive():
            return rng.choice(PRIMITIVES[node.type.value])
        case Enum():
            return rng.choice(node.symbols)
        case Fixed():
            return rng.randbytes(node.size)
        case Array():
            return [value(schema, node.items, rng, depth + 1) for _ in range(count(rng, depth))]
        case Map():
            return {str(n): value(schema, node.values, rng, depth + 1) for n in range(count(rng, depth))}
        case Union():
            return branch_value(schema, node, rng, depth)
        case Record():
            return {field.name: value(schema, field.type, rng, depth + 1) for field in node.fields}
    raise AssertionError(node)


def count(rng: random.Random, depth: int) -> int:
    return 0 if depth > DEPTH_MAX // 2 else rng.choice((0, 1, 1, 2))


def branch_value(schema: Schema, node: Union, rng: random.Random, depth: int) -> Any:
    """Any branch; deep inside the first that ends."""
    branches = list(node.branches)
    rng.shuffle(branches)
    for branch in branches:
        try:
            return branch_name(schema.resolve(branch)), value(schema, branch, rng, depth + 1)
        except UnboundedValue:
            continue
    raise UnboundedValue


def encode_samples(writer: Schema, rng: random.Random) -> list[bytes]:
    """Different values in Avro's binary encoding; none where the type has none or fastavro has its own opinion."""
    parsed = fastavro.parse_schema(json.loads(self_contained_text(writer)))
    found: dict[bytes, None] = {}
    for _ in range(DATA):
        stream = io.BytesIO()
        try:
            fastavro.schemaless_writer(stream, parsed, value(writer, writer.root, rng))
        except (UnboundedValue, IndexError):  # IndexError: a union or an enum without any
            continue
        found[stream.getvalue()] = None
    return list(found)


def read_with_java(pairs: list[tuple[str, str]], work_dir: Path) -> list[tuple[tuple[str, str], set[str], list[str]]]:
    """The pairs that have data, with the rules that we find broken and what Avro Java says of each value."""
    requests = []
    for index, (reader, writer) in enumerate(pairs):
        data = encode_samples(parse_schema(writer), random.Random(f"{SEED}/{index}"))
        if data:
            encoded = [base64.b64encode(datum).decode() for datum in data]
            requests.append({"reader": reader, "writer": writer, "data": encoded})
    try:
        read = java_answers("ReadingOracle", requests, work_dir)
    except JavaNotFoundError as error:
        pytest.skip(str(error))
    out = []
    for request, answer in zip(requests, read, strict=True):
        pair = str(request["reader"]), str(request["writer"])
        rules = {problem.type.value for problem in check_reader_writer(*map(parse_schema, pair))}
        out.append((pair, rules, answer["read"]))
    return out


def has_namesakes(schema: Schema) -> bool:
    """Whether a union has two types of one short name: the check takes either, the reader that of the full name."""
    for union in (node for node in walk(schema) if isinstance(node, Union)):
        branches = map(schema.resolve, union.branches)
        names = [branch.name.name for branch in branches if isinstance(branch, NamedType)]
        if len(set(names)) < len(names):
            return True
    return False


def is_explained(reader: Schema, writer: Schema, problem: str) -> bool:
    """Whether the pair has what makes Avro Java's check promise more than its reader holds; see docs/compat.md.

    The check compares short names and looks at aliases where it needs one; the reader compares full names in unions and
    for fields' aliases, and renames every type of the writer that some alias names, whatever else is called so.
    """
    if problem.startswith(DEFAULTS_OF_UNIONS) or has_namesakes(reader):
        return True
    linted = LintInput(reader, [VersionedSchema(1, writer)])
    return bool(lint_problems(parse_lints(["namespace-changed"]), linted)) or any(
        alias in reader.names or (alias in writer.names and node.name in writer.names)
        for node in reader.names.values()
        for alias in node.aliases
    )


@pytest.mark.parametrize("make", [schema_pairs, real_pairs], ids=["generated", "changed-real-schemas"])
def test_verdicts_match_avro_java_reads(make: Any, tmp_path: Path) -> None:
    java_verdicts_or_skip = read_with_java(list(make(SEED, PAIRS)), tmp_path)
    print(
        f"HEADRACE_COMPAT_SEED={SEED}: {len(java_verdicts_or_skip)} pairs, {sum(len(read) for _, _, read in java_verdicts_or_skip)} values"
    )
    broken = [
        (pair, problem)
        for pair, rules, read in java_verdicts_or_skip
        for problem in read
        if problem and not rules and not is_explained(*map(parse_schema, pair), problem)
    ]
    assert not broken, f"{len(broken)} said to be readable, such as {broken[0]}"

    refused = [(rules, read) for _, rules, read in java_verdicts_or_skip if rules]
    fine = Counter(rule for rules, read in refused if not any(read) for rule in rules)
    print(f"{len(refused)} refused; of these every value was read of {fine}")
    assert sum(any(read) for _, read in refused) > len(refused) * REFUSED_RATIO_MIN


def test_empty_array_lint_matches_avro_java(tmp_path: Path) -> None:
    """When this fails, Avro Java has mended it, and the lint has no purpose any more."""
    writer = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
    golden = GOLDEN / "compat" / "EMPTY_ARRAY_DEFAULT"
    readers = {case.name: (case / "candidate.avsc").read_text() for case in sorted(golden.iterdir())}
    found = dict(zip(readers, read_with_java([(reader, writer) for reader in readers.values()], tmp_path), strict=True))
    for name, (_, rules, read) in found.items():
        assert not rules
        assert all(bool(problem) == name.startswith("trips") for problem in read)
