"""Reader schemas give the values that Avro Java reads: type and value, on generated pairs of schemas.

Avro Java writes what it read with the reader schema; both results are then decoded with that schema alone.
`HEADRACE_COMPAT_PAIRS` and `HEADRACE_COMPAT_SEED` set the number and the seed of the generated pairs.
"""

from __future__ import annotations

import base64
import itertools
import os
import random
from collections import Counter
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest

from headrace.avro_codec import BadBody, CapturedTime, compile_check, compile_resolution, core_library
from headrace.avro_schema import Enum, Fixed, Record, Schema, frame, parse_schema
from headrace.clients.decoding import Decoder, FetchedRecord
from headrace.clients.encoding import compiled_schema
from headrace.clients.errors import UndecodableMessage
from headrace.pipeline.java import JavaNotFoundError
from headrace.registry.errors import SubjectNotFound
from headrace.settings import LoaderSettings
from support.schemas.avro_java import java_results
from support.schemas.samples import encode_samples
from support.schemas.schema_pairs import schema_pairs
from support.schemas.union_pairs import union_pairs

PAIRS = int(os.environ.get("HEADRACE_COMPAT_PAIRS", "1500")) // 4  # each with about five values
SEED = int(os.environ.get("HEADRACE_COMPAT_SEED", "1"))
READ_RATIO_MIN = 0.4
"""Minimum ratio of the values that both read, so that the comparison has a meaning."""

UNDECODABLE = "undecodable"


class Registry:
    """A registry with one schema."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema

    def schema_by_id(self, schema_id: int) -> Schema:
        return self.schema

    def parsed(self, schema: Schema) -> Schema:
        return schema

    def version(self, subject: str, version: str) -> Any:
        raise SubjectNotFound(subject, subject=subject)


def exact(value: Any) -> str:
    """Returns a text that is equal only for values of equal types; the order of dicts does not matter."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {exact(item)}" for key, item in sorted(value.items())) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(exact, value)) + "]"
    return f"{type(value).__name__} {value!r}"


def read_by_consumer(decoder: Decoder, body: bytes) -> str:
    try:
        return exact(decoder.decode(FetchedRecord("t", 0, 0, 0, None, frame(1, body), ()))[1])
    except UndecodableMessage:
        return UNDECODABLE


def read_by_java(reader: Any, problem: str, written: str) -> str:
    if problem:
        return UNDECODABLE
    try:
        return exact(fastavro.schemaless_reader(BytesIO(base64.b64decode(written)), reader, None))
    except Exception:  # such as a date beyond the year 9999
        return UNDECODABLE


def is_explained(reader: Schema, writer: Schema, java: str) -> bool:
    """Whether the results may differ; docs/differences.md lists the reasons. Avro Java

    - fails if two types or fields of the writer get the same name by an alias,
    - ignores aliases of fields if the names of the records differ,
    - applies aliases twice, so that it also follows an alias of the new name,
    - does not find an enum or fixed of another namespace in a union.
    """
    types, written = [*reader.names.values()], [*writer.names.values()]
    records = [node for node in types if isinstance(node, Record)]
    field_aliases = [(node, field.name, alias) for node in records for field in node.fields for alias in field.aliases]
    type_aliases = [(node.name, alias) for node in types for alias in node.aliases]
    if java == UNDECODABLE:
        return bool(field_aliases or type_aliases) or any(
            isinstance(node, Enum | Fixed) and node.name.name == other.name.name and node.name != other.name
            for node in types
            for other in written
        )
    is_ignored = any(
        node.name != other.name and alias in {field.name for field in other.fields}
        for node, _, alias in field_aliases
        for other in written
        if isinstance(other, Record)
    )
    is_followed_twice = any(
        alias == target for node, _, alias in field_aliases for other, target, _ in field_aliases if node is other
    ) or any(alias == target for _, alias in type_aliases for target, _ in type_aliases)
    is_taken = any(name in writer.names and alias in writer.names for name, alias in type_aliases)
    return is_ignored or is_followed_twice or is_taken


def test_values_are_those_of_avro_java(tmp_path: Path) -> None:
    pairs = itertools.chain(schema_pairs(SEED, PAIRS // 2), union_pairs(SEED, PAIRS - PAIRS // 2))
    requests: list[dict[str, Any]] = []
    for index, (reader, writer) in enumerate(pairs):
        data = encode_samples(parse_schema(writer), random.Random(f"{SEED}/{index}"))
        if data:
            encoded = [base64.b64encode(body).decode() for body in data]
            requests.append({"reader": reader, "writer": writer, "data": encoded})
    try:
        results = java_results("ReadingOracle", requests, tmp_path)
    except JavaNotFoundError as error:
        pytest.skip(str(error))
    counts: Counter[str] = Counter()
    different = []
    for request, result in zip(requests, results, strict=True):
        reader_schema, writer_schema = parse_schema(request["reader"]), parse_schema(request["writer"])
        decoder = Decoder(Registry(writer_schema), reader_schema, LoaderSettings())  # type: ignore[arg-type]
        compiled = compiled_schema(reader_schema)
        for datum, problem, written in zip(request["data"], result["read"], result["written"], strict=True):
            ours = read_by_consumer(decoder, base64.b64decode(datum))
            java = read_by_java(compiled, problem, written)
            explained = ours != java and is_explained(reader_schema, writer_schema, java)
            counts["explained" if explained else "undecodable" if ours == UNDECODABLE else "read"] += 1
            if ours != java and not explained:
                different.append((request["reader"], request["writer"], datum, problem, ours, java))
    print(f"HEADRACE_COMPAT_SEED={SEED}: {len(requests)} pairs, {dict(counts)}")
    assert not different, f"{len(different)} differ, such as {different[0]}"
    assert counts["read"] > READ_RATIO_MIN * counts.total()


def damaged(body: bytes, rng: random.Random) -> bytes:
    """Returns a body with a changed, missing or additional byte."""
    at = rng.randrange(len(body) + 1)
    return body[:at] + rng.choice((b"", b"\x01", b"\x7f", b"\xff", rng.randbytes(2))) + body[at + rng.randint(0, 1) :]


def test_core_and_python_convert_to_the_same_bytes() -> None:
    """Also bodies that are no values of the writer schema, which both reject for the same reason."""
    core = core_library()
    if core is None:
        pytest.skip("the core is not built")
    accepted: Counter[bool] = Counter()
    for index, (reader, writer) in enumerate(itertools.chain(schema_pairs(SEED, 300), union_pairs(SEED, 300))):
        reader_schema, writer_schema = parse_schema(reader), parse_schema(writer)
        converters = [
            compile_resolution(writer_schema, reader_schema, library, (), CapturedTime()) for library in (core, None)
        ]
        check = compile_check(writer_schema, None)
        rng = random.Random(f"{SEED}/{index}")
        samples = encode_samples(writer_schema, rng)
        for body in [*samples, *(damaged(sample, rng) for sample in samples for _ in range(4))]:
            found = [result_of(convert, body) for convert in converters]
            assert found[0] == found[1], (reader, writer, body)
            malformed = result_of(check, body)
            assert not isinstance(malformed, str) or found[1] == malformed, (reader, writer, body)
            accepted[isinstance(found[0], bytes)] += 1
    assert min(accepted[True], accepted[False]) > 500


def result_of(convert: Callable[[bytes], bytes | None], body: bytes) -> bytes | str | None:
    try:
        return convert(body)
    except BadBody as error:
        return str(error)
