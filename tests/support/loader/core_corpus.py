"""A corpus of inputs, found by a fuzzer, that reach different parts of the core. Each is checked with core and
reference, which must give the same result.

`tests/golden/core_corpus` has the histories of schemas, from which the programs of the core are compiled, and one input
per line in hexadecimal. `core_guided_fuzz.py` finds more inputs. An input consists of the number of the history;
options; the number of records of a batch, or the version of a body; the capacity for rows, which only
`core_fuzz_target.c` uses; then the payload of the batch, or the body.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.avro_codec import BadBody, CapturedTime
from headrace.avro_codec.program import pack_words
from headrace.avro_schema import parse_schema
from headrace.kafka_wire.record_batch import Record, parse_records
from headrace.loader.project.batches import Columns, RecordColumns
from headrace.loader.project.messages import Clamp
from headrace.loader.project.topic_projection import TopicProjection
from headrace.loader.work_unit import TopicPlan
from support.checkout import GOLDEN, ROOT
from support.loader.compiled_core import required_core
from support.loader.projection_oracle import core_and_reference
from support.loader.range_comparison import T0, RangeInputs, check_same, plan_of

DIRECTORY: Final = GOLDEN / "core_corpus"
INPUTS: Final = DIRECTORY / "inputs.txt"
HISTORIES: Final = DIRECTORY / "histories.json"
TARGET: Final = ROOT / "tests" / "support" / "loader" / "core_fuzz_target.c"

HEAD_BYTES: Final = 4
IS_BODY: Final = 4
IS_CLAMPED: Final = 8
SUFFIXES: Final = ("none", "position", "full")
CLAMP: Final = Clamp(86_400_000, T0)
TIME_FIELDS: Final = ("timestamp",)


@dataclass(frozen=True, slots=True)
class World:
    """A history of schemas, with the plan that projects its messages to rows of the newest load schema."""

    plan: TopicPlan

    def programs(self) -> Iterator[bytes]:
        """Yields the programs of all versions in the form that the fuzz target reads: schema id, whether it has a time
        field, words, constants."""
        projection = TopicProjection(self.plan, TIME_FIELDS)
        for schema_id in sorted(self.plan.writer_schemas):
            writer = projection.writer(schema_id)
            if (program := writer.program) is not None:
                yield struct.pack("=iiI", schema_id, bool(writer.time_sources), len(program.words)) + pack_words(
                    program.words
                )
                yield struct.pack("=I", len(program.constants)) + program.constants

    def check_body(self, version: int, body: bytes) -> None:
        """Converts a message body with core and reference.

        Args:
            version: the number of the writer schema's version, from 0.

        Raises:
            AssertionError: their results differ.
        """
        ids = sorted(self.plan.writer_schemas)
        schema_id = ids[version % len(ids)]
        writer = parse_schema(self.plan.writer_schemas[schema_id])
        convert = core_and_reference(
            writer, parse_schema(self.plan.load_schema), (), CapturedTime(), self.plan.routes[schema_id]
        )
        try:
            convert(body)
        except BadBody:
            return

    def check_payload(self, given: RangeInputs, payload: bytes, count: int) -> None:
        """Processes the payload of a record batch with core and reference.

        Args:
            count: number of its records.

        Raises:
            AssertionError: their results differ.
        """
        expected: list[Record] | None
        found: Sequence[Record] | None
        try:
            expected = list(parse_records(payload, count, 100, T0, None))
        except (ValueError, IndexError):
            expected = None
        try:
            found = RecordColumns(required_core())(payload, count, 100, T0, None)
        except (ValueError, IndexError):
            found = None
        assert (None if found is None else list(found)) == expected, payload.hex()
        if isinstance(found, Columns):
            check_same(given, [[payload]], [count])


def worlds() -> list[World]:
    histories = json.loads(HISTORIES.read_text(encoding="utf-8"))
    return [World(plan_of([parse_schema(json.dumps(version)) for version in history])) for history in histories]


def inputs() -> list[bytes]:
    return [bytes.fromhex(line) for line in INPUTS.read_text(encoding="ascii").splitlines()]


def save_inputs(found: Sequence[bytes]) -> None:
    """Replaces the corpus by these inputs, in an order that keeps diffs small."""
    lines = sorted({one.hex() for one in found}, key=lambda line: (line[:2], len(line), line))
    INPUTS.write_text("\n".join((*lines, "")), encoding="ascii")


def write_programs(path: Path, of: Sequence[World]) -> None:
    """Writes the file of programs that the fuzz target reads, in the byte order of this machine."""
    parts = [struct.pack("=I", len(of))]
    for world in of:
        programs = list(world.programs())
        parts += [struct.pack("=I", len(programs) // 2), *programs]
    path.write_bytes(b"".join(parts))


def write_inputs(path: Path, of: Sequence[bytes]) -> None:
    """Writes inputs to a file for the fuzz target built with HR_REPLAY, which runs each input and every prefix of it
    instead of searching for new inputs."""
    path.write_bytes(b"".join(struct.pack("=I", len(data)) + data for data in of))


def check(of: Sequence[World], data: bytes) -> None:
    """Runs core and reference on one input.

    Raises:
        AssertionError: their results differ.
    """
    if len(data) < HEAD_BYTES:
        return
    world, options, count = of[data[0] % len(of)], data[1], data[2]
    payload = data[HEAD_BYTES:]
    if options & IS_BODY:
        world.check_body(count, payload)
        return
    clamp = CLAMP if options & IS_CLAMPED else None
    world.check_payload(RangeInputs(world.plan, TIME_FIELDS, SUFFIXES[options % 3], clamp=clamp), payload, count)
