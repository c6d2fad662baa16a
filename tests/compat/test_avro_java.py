"""Our verdicts equal Avro Java's: the same problems in the same order, with the same location and message.

`HEADRACE_COMPAT_PAIRS` and `HEADRACE_COMPAT_SEED` set the number and the seed of the generated pairs.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.avro_schema import parse_schema
from headrace.compat import IncompatibilityType, check_reader_writer
from headrace.pipeline.java import JavaNotFoundError
from support.schemas.avro_java import java_verdicts
from support.schemas.real_pairs import real_pairs, shrink_pair
from support.schemas.schema_pairs import PRIMITIVES, schema_pairs

PAIRS = int(os.environ.get("HEADRACE_COMPAT_PAIRS", "1500"))
SEED = int(os.environ.get("HEADRACE_COMPAT_SEED", "1"))


def record(*fields: tuple[str, Any], name: str = "A", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": key, "type": node} for key, node in fields], **more}


def enum(*symbols: str, name: str = "E", **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(symbols), **more}


B = record(name="B")
B_C = record(("c", "int"), name="B")

HANDWRITTEN_PAIRS: list[tuple[Any, Any]] = [
    # A type met again repeats its problems with their first location, also inside a trial of a union branch.
    (record(("x", B_C), ("y", "B")), record(("x", B), ("y", "B"))),
    (record(("x", ["null", B_C]), ("y", "B")), record(("x", ["null", B]), ("y", "B"))),
    # The same, with a use before the definition.
    (record(("x", "B"), ("y", B_C)), record(("x", "B"), ("y", B))),
    (record(("x", ["null", "B"]), ("y", B_C)), record(("x", ["null", "B"]), ("y", B))),
    (record(("y", B_C), ("x", "B")), record(("x", "B"), ("y", B))),
    # A missing writer field with an enum type that has a default.
    (record(("e", enum("X", default="X")), ("f", "E")), record()),
    (record(("f", "E"), ("e", enum("X", default="X"))), record()),
    # Unions without branches, and a union against another type.
    ([], "int"),
    ("int", []),
    ([], []),
    (["int", "string"], ["long", "null", enum("X")]),
    ("int", ["int"]),
    # Recursion, names and aliases.
    (record(("n", ["null", "A"]), ("z", "int")), record(("n", ["null", "A"]))),
    (record(aliases=["x.B"]), record(name="B", namespace="x")),
    (record(aliases=["B"]), record(name="B", namespace="x")),
    (record(namespace="x"), record(namespace="y")),
    ({**record(), "type": "error"}, record()),
    ({**record(), "type": "error"}, "int"),
    (enum("A"), enum("C", "B", "A", name="F")),
    ({"type": "fixed", "name": "F", "size": 0}, {"type": "fixed", "name": "G", "size": 8}),
    *((reader, writer) for reader in PRIMITIVES for writer in PRIMITIVES),
]


def our_verdict(reader: str, writer: str) -> dict[str, Any]:
    problems = check_reader_writer(parse_schema(reader), parse_schema(writer))
    if problems and problems[0].type is IncompatibilityType.AMBIGUOUS_FIELD_ALIAS:
        return {"raised": problems[0].message}
    return {"problems": [[problem.type.value, problem.location, problem.message] for problem in problems]}


def java_verdicts_or_skip(pairs: list[tuple[str, str]], work_dir: Path) -> list[dict[str, Any]]:
    try:
        return java_verdicts(pairs, work_dir)
    except JavaNotFoundError as error:
        pytest.skip(str(error))


def test_handwritten_pairs_match_avro_java(tmp_path: Path) -> None:
    pairs = [(json.dumps(reader), json.dumps(writer)) for reader, writer in HANDWRITTEN_PAIRS]
    for pair, verdict in zip(pairs, java_verdicts_or_skip(pairs, tmp_path), strict=True):
        assert our_verdict(*pair) == verdict, pair


def test_generated_pairs_match_avro_java(tmp_path: Path) -> None:
    compare(list(schema_pairs(SEED, PAIRS)), tmp_path)


def test_changed_real_schemas_match_avro_java(tmp_path: Path) -> None:
    compare(list(real_pairs(SEED, PAIRS // 3)), tmp_path)


def compare(pairs: list[tuple[str, str]], work_dir: Path) -> None:
    """Asserts that every verdict equals Avro Java's; reports the first differing pair, reduced as far as possible."""
    print(f"HEADRACE_COMPAT_SEED={SEED} HEADRACE_COMPAT_PAIRS={PAIRS}: {len(pairs)} pairs")

    def find_differences(some: Sequence[tuple[str, str]]) -> list[bool]:
        verdicts = java_verdicts_or_skip(list(some), work_dir)
        return [our_verdict(*pair) != verdict for pair, verdict in zip(some, verdicts, strict=True)]

    different = [pair for pair, is_so in zip(pairs, find_differences(pairs), strict=True) if is_so]
    if different:
        reader, writer = shrink_pair(different[0], find_differences)
        java, verdict = java_verdicts_or_skip([(reader, writer)], work_dir)[0], our_verdict(reader, writer)
        pytest.fail(
            f"{len(different)} of {len(pairs)} differ, such as\n  reader {reader}\n  writer {writer}\n"
            f"  java {java}\n  ours {verdict}\nfound as\n  reader {different[0][0]}\n  writer {different[0][1]}"
        )


def test_shrink_pair_reduces_pair_while_verdicts_differ() -> None:
    """Verdicts differ if the reader has an enum and the writer a fixed."""
    pairs = ((reader, writer) for reader, writer in schema_pairs(1, 1500) if '"enum"' in reader and '"fixed"' in writer)
    reader, writer = shrink_pair(
        next(pairs), lambda some: ['"enum"' in one and '"fixed"' in other for one, other in some]
    )
    assert len(reader) < 80
    assert len(writer) < 80


def test_generated_pairs_cover_every_kind_of_problem() -> None:
    verdicts = [our_verdict(*pair) for pair in schema_pairs(1, 1500)]
    seen = Counter(problem[0] for verdict in verdicts for problem in verdict.get("problems", ()))
    assert sum("raised" in verdict for verdict in verdicts) > 5
    assert sum(verdict == {"problems": []} for verdict in verdicts) > 300
    for kind in set(IncompatibilityType) - {IncompatibilityType.AMBIGUOUS_FIELD_ALIAS}:
        assert seen[kind.value] > 20, (kind, seen)
