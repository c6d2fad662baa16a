"""Verdicts hold for data: Avro Java reads data written by fastavro if we report compatible, and fails otherwise.

`HEADRACE_COMPAT_PAIRS` and `HEADRACE_COMPAT_SEED` set the number and the seed of the generated pairs.
"""

from __future__ import annotations

import base64
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headrace.avro_schema import NamedType, Schema, Union, parse_schema, walk
from headrace.compat import VersionedSchema, check_reader_writer
from headrace.compat.lints import LintInput, lint_problems, parse_lints
from headrace.pipeline.java import JavaNotFoundError
from support.checkout import GOLDEN
from support.schemas.avro_java import java_results
from support.schemas.real_pairs import real_pairs
from support.schemas.samples import encode_samples
from support.schemas.schema_pairs import schema_pairs

PAIRS = int(os.environ.get("HEADRACE_COMPAT_PAIRS", "1500")) // 3
SEED = int(os.environ.get("HEADRACE_COMPAT_SEED", "1"))
REFUSED_RATIO_MIN = 0.9
"""Minimum ratio of incompatible pairs for which some value fails. For the others, no value met the problem, or only a
name differs, which the check compares and the reader ignores.
"""

DEFAULTS_OF_UNIONS = ("AvroRuntimeException: Not an array:", "AvroRuntimeException: Not a map:")
"""Avro Java cannot use the default of a union if its value is an array or a map."""


def read_with_java(pairs: list[tuple[str, str]], work_dir: Path) -> list[tuple[tuple[str, str], set[str], list[str]]]:
    """Returns the pairs that have data, with the violated rules and Avro Java's result for each value."""
    requests = []
    for index, (reader, writer) in enumerate(pairs):
        data = encode_samples(parse_schema(writer), random.Random(f"{SEED}/{index}"))
        if data:
            encoded = [base64.b64encode(datum).decode() for datum in data]
            requests.append({"reader": reader, "writer": writer, "data": encoded})
    try:
        read = java_results("ReadingOracle", requests, work_dir)
    except JavaNotFoundError as error:
        pytest.skip(str(error))
    out = []
    for request, response in zip(requests, read, strict=True):
        pair = str(request["reader"]), str(request["writer"])
        rules = {problem.type.value for problem in check_reader_writer(*map(parse_schema, pair))}
        out.append((pair, rules, response["read"]))
    return out


def has_namesakes(schema: Schema) -> bool:
    """Whether a union has two types with the same short name: the check accepts either one, the reader only one."""
    for union in (node for node in walk(schema) if isinstance(node, Union)):
        branches = map(schema.resolve, union.branches)
        names = [branch.name.name for branch in branches if isinstance(branch, NamedType)]
        if len(set(names)) < len(names):
            return True
    return False


def is_explained(reader: Schema, writer: Schema, problem: str) -> bool:
    """Whether the pair has a known reason why Avro Java's check accepts more than its reader reads; see docs/compat.md.

    The check compares short names and uses aliases where needed. The reader compares full names in unions and for
    aliases of fields, and renames every writer type that an alias names, even if another type has that name.
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
    checked_pairs = read_with_java(list(make(SEED, PAIRS)), tmp_path)
    value_count = sum(len(read) for _, _, read in checked_pairs)
    print(f"HEADRACE_COMPAT_SEED={SEED}: {len(checked_pairs)} pairs, {value_count} values")
    broken = [
        (pair, problem)
        for pair, rules, read in checked_pairs
        for problem in read
        if problem and not rules and not is_explained(*map(parse_schema, pair), problem)
    ]
    assert not broken, f"{len(broken)} reported as readable, such as {broken[0]}"

    refused = [(rules, read) for _, rules, read in checked_pairs if rules]
    fine = Counter(rule for rules, read in refused if not any(read) for rule in rules)
    print(f"{len(refused)} refused; of these every value was read of {fine}")
    assert sum(any(read) for _, read in refused) > len(refused) * REFUSED_RATIO_MIN


def test_empty_array_lint_matches_avro_java(tmp_path: Path) -> None:
    """If this fails, Avro Java has fixed the bug, and the lint can be removed."""
    writer = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
    golden = GOLDEN / "compat" / "EMPTY_ARRAY_DEFAULT"
    readers = {case.name: (case / "candidate.avsc").read_text() for case in sorted(golden.iterdir())}
    found = dict(zip(readers, read_with_java([(reader, writer) for reader in readers.values()], tmp_path), strict=True))
    for name, (_, rules, read) in found.items():
        assert not rules
        assert all(bool(problem) == name.startswith("trips") for problem in read)
