"""The inputs that a fuzzer found to reach different parts of the core, kept, and each of them through both twins.

`tests/golden/core_corpus` has the histories of schemas whose programs the inputs are for, and one input a line, in
hexadecimal. `core_guided_fuzz.py` finds more. An input is: the history; options; how many records, or which version of
the history; how much room there is for rows, for `core_fuzz_target.c` alone; then the payload of a batch, or a body.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.avro_codec import BadBody, CapturedLong
from headrace.avro_codec.program import pack_words
from headrace.avro_schema import parse_schema
from headrace.kafka_wire.record_batch import Record, parse_records
from headrace.loader.project.batches import Columns, RecordColumns
from headrace.loader.project.messages import Clamp
from headrace.loader.project.topic_projection import TopicProjection
from headrace.loader.work_unit import TopicPlan
from support.checkout import GOLDEN, ROOT
from support.loader.compiled_core import required_core
from support.loader.projection_oracle import both_twins
from support.loader.ranges_both_ways import T0, Given, check_same, plan_of

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
    """A history of schemas, and how its messages become rows of its last."""

    plan: TopicPlan

    def programs(self) -> Iterator[bytes]:
        """As the target reads them: schema id, unit of time, words, constants."""
        projection = TopicProjection(self.plan, TIME_FIELDS)
        for schema_id in sorted(self.plan.writer_schemas):
            writer = projection.writer(schema_id)
            if (program := writer.program) is not None:
                yield struct.pack("=iiI", schema_id, writer.core_unit, len(program.words)) + pack_words(program.words)
                yield struct.pack("=I", len(program.constants)) + program.constants

    def check_body(self, version: int, body: bytes) -> None:
        """A body of any version, counted from 0, through both twins.

        Raises:
            AssertionError: they differ.
        """
        ids = sorted(self.plan.writer_schemas)
        schema_id = ids[version % len(ids)]
        writer = parse_schema(self.plan.writer_schemas[schema_id])
        convert = both_twins(
            writer, parse_schema(self.plan.load_schema), None, CapturedLong(), self.plan.routes[schema_id]
        )
        try:
            convert(body)
        except BadBody:
            return

    def check_payload(self, given: Given, payload: bytes, count: int) -> None:
        """A batch's payload through both twins.

        Raises:
            AssertionError: they differ.
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
    """Makes these the kept inputs, in an order that changes little from one time to the next."""
    lines = sorted({one.hex() for one in found}, key=lambda line: (line[:2], len(line), line))
    INPUTS.write_text("\n".join((*lines, "")), encoding="ascii")


def write_programs(path: Path, of: Sequence[World]) -> None:
    """For the target, in the byte order of this machine."""
    parts = [struct.pack("=I", len(of))]
    for world in of:
        programs = list(world.programs())
        parts += [struct.pack("=I", len(programs) // 2), *programs]
    path.write_bytes(b"".join(parts))


def write_inputs(path: Path, of: Sequence[bytes]) -> None:
    """For the target where it is a program of its own."""
    path.write_bytes(b"".join(struct.pack("=I", len(data)) + data for data in of))


def check(of: Sequence[World], data: bytes) -> None:
    """One input through both twins.

    Raises:
        AssertionError: they differ.
    """
    if len(data) < HEAD_BYTES:
        return
    world, options, count = of[data[0] % len(of)], data[1], data[2]
    payload = data[HEAD_BYTES:]
    if options & IS_BODY:
        world.check_body(count, payload)
        return
    clamp = CLAMP if options & IS_CLAMPED else None
    world.check_payload(Given(world.plan, TIME_FIELDS, SUFFIXES[options % 3], clamp=clamp), payload, count)
