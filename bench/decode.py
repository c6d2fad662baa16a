"""Measures how long a consumer decodes a message: with the writer's schema alone, and resolved to a `reader_schema`.

    python -m bench.decode [--messages 20000] [--rounds 5]

Runs without registry and broker. The messages are those of `bench.producer`. Prints for each kind of reader schema
the best of the rounds: microseconds of CPU time per message, and the ratio to decoding without a reader schema.
"""

from __future__ import annotations

import argparse
import json
import time
from io import BytesIO
from typing import Any

import fastavro

from bench.producer import SCHEMA, page_views
from headrace.avro_schema import Schema, frame, parse_schema
from headrace.clients.decoding import Decoder, FetchedRecord
from headrace.registry.errors import SubjectNotFound
from headrace.settings import LoaderSettings


class OneSchemaRegistry:
    """A registry that has the schema of the messages under each id."""

    def schema_by_id(self, schema_id: int) -> str:
        return SCHEMA

    def parsed(self, text: str) -> Schema:
        return parse_schema(text)

    def version(self, subject: str, version: str) -> Any:
        raise SubjectNotFound(subject, subject=subject)


def reader_schemas() -> dict[str, str | None]:
    """Returns a name for each measured reader schema; None is decoding without one."""
    added = json.loads(SCHEMA)
    added["fields"].append({"name": "added", "type": "string", "default": "x"})
    changed = json.loads(SCHEMA)
    del changed["fields"][3], changed["fields"][6]
    changed["fields"].reverse()
    for field in changed["fields"]:
        if field["name"] == "id":
            field["type"] = "double"
    wide = json.loads(SCHEMA)
    for field in wide["fields"]:
        if not isinstance(field["type"], list):
            field["type"] = ["null", field["type"]]
    return {
        "none": None,
        "the same": SCHEMA,
        "one field added": json.dumps(added),
        "fields reordered, dropped and promoted": json.dumps(changed),
        "every field nullable": json.dumps(wide),
    }


def decode_us(decoder: Decoder, records: list[FetchedRecord]) -> float:
    """Returns the CPU time of decoding the records, in microseconds per record."""
    began = time.process_time()
    for record in records:
        decoder.decode(record)
    return (time.process_time() - began) / len(records) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    compiled = fastavro.parse_schema(json.loads(SCHEMA))
    records = []
    for offset, (key, value) in enumerate(page_views(args.messages)):
        body = BytesIO()
        fastavro.schemaless_writer(body, compiled, value)
        records.append(FetchedRecord("views", 0, offset, 0, key.encode(), frame(1, body.getvalue()), ()))
    decoders = {
        name: Decoder(OneSchemaRegistry(), None if text is None else parse_schema(text), LoaderSettings())  # type: ignore[arg-type]
        for name, text in reader_schemas().items()
    }
    rounds = [{name: decode_us(decoder, records) for name, decoder in decoders.items()} for _ in range(args.rounds)]
    best = {name: min(each[name] for each in rounds) for name in decoders}
    print(f"{'reader schema':40}{'us/message':>12}{'ratio':>8}")
    for name, found in best.items():
        print(f"{name:40}{found:>12.2f}{found / best['none']:>7.2f}x")


if __name__ == "__main__":
    main()
