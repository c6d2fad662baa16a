"""Measures the stages of a task, and each stage's minimum: `python -m bench.stages`.

A task loads page views from memory, as in `bench.loader_task`, with a clock around each stage. Right afterwards the
same bytes pass through the minimum work of the stage: a copy of the rows for the core, which must read and write them
once; the checksum; the compressor; one file and its fsync. `rest` is the time without a clock: Python between the
batches, joining rows, opening files. A task from memory receives nothing; that row measures a socket through which
another process sends the same bytes.

    python -m bench.stages [--messages 1000000] [--rounds 3] [--keep]

`--keep` appends the table to `bench/results/stages.md`.
"""

from __future__ import annotations

import argparse
import os
import socket
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import cramjam
from crc32c import crc32c
from zlib_ng import zlib_ng

from bench import loader_task
from bench.support.results import add_keep_flag, append_result, describe_run
from headrace import avro_codec
from headrace.kafka_wire import record_batch
from headrace.loader import task
from headrace.loader.checksum import Checksum
from headrace.loader.storage.local.sink import LocalSink
from headrace.loader.write import container, task_files

PIECE_BYTES = 1 << 20
PIECES_MAX = 64  # bytes of rows, for the minimum of a stage
CHECKSUM = "checksums of files"
ROW_SUFFIX_BYTES = 10  # partition and offset after each row

Seconds = defaultdict[str, float]


def timed(seconds: Seconds, stage: str, work: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return work(*args, **kwargs)
        finally:
            seconds[stage] += time.perf_counter() - began

    return run


class TimedChecksum(Checksum):
    """The checksum of a file, which adds the time of its computation to a stage."""

    def __init__(self, seconds: Seconds) -> None:
        super().__init__()
        self.update = timed(seconds, CHECKSUM, self.update)


@contextmanager
def clocks(seconds: Seconds, blocks: list[bytes]) -> Iterator[None]:
    """While the context is open, the time of each stage of all tasks in this process is added up.

    Args:
        seconds: receives the seconds, by stage.
        blocks: receives copies of the first blocks of rows that a task compresses, as input for the minimum work.
    """
    core = avro_codec.core_library()
    assert core is not None, "the core is not compiled; run make setup-dev"

    def compressed(data: bytes, buffer: bytearray) -> Any:
        if len(blocks) < PIECES_MAX:
            blocks.append(bytes(data))
        return cramjam.snappy.compress_raw_into(data, buffer)

    def make_sink(staging: str, number: int) -> LocalSink:
        sink = LocalSink(staging, number)
        for name in ("append", "finish"):
            setattr(sink, name, timed(seconds, "writing and fsync", getattr(sink, name)))
        return sink

    run_work_unit = task.run_work_unit
    snappy = SimpleNamespace(
        compress_raw_into=timed(seconds, "snappy", compressed), compress_raw_max_len=cramjam.snappy.compress_raw_max_len
    )
    with (
        patch.object(record_batch, "crc32c", timed(seconds, "CRC-32C of batches", crc32c)),
        patch.object(core, "records", timed(seconds, "core", core.records)),
        patch.object(core, "run", timed(seconds, "core", core.run)),
        patch.object(container, "cramjam", SimpleNamespace(snappy=snappy, Buffer=cramjam.Buffer)),
        patch.object(
            container,
            "zlib_ng",
            SimpleNamespace(**{**vars(zlib_ng), "crc32": timed(seconds, "CRC-32 of blocks", zlib_ng.crc32)}),
        ),
        patch.object(task_files._OpenFile, "__init__", _with_checksum(seconds)),
        patch.object(task, "run_work_unit", lambda unit: run_work_unit(unit, make_sink)),
    ):
        yield


def _with_checksum(seconds: Seconds) -> Callable[..., None]:
    original_init = task_files._OpenFile.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original_init(self, *args, **kwargs)
        self.checksum = TimedChecksum(seconds)

    return init


def best(work: Callable[[], object], rounds: int) -> float:
    """Returns the seconds of the fastest of several rounds."""

    def measure_once() -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    return min(measure_once() for _ in range(rounds))


def written(pieces: Sequence[bytes]) -> None:
    with tempfile.TemporaryDirectory() as directory, Path(directory, "all").open("wb", buffering=0) as file:
        for piece in pieces:
            file.write(piece)
        os.fsync(file.fileno())


def received(pieces: Sequence[bytes]) -> None:
    """Receives pieces of bytes through a loopback socket, to which a child process sends them."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = os.fork()
        if not sender:
            with socket.create_connection(server.getsockname()) as connection:
                for piece in pieces:
                    connection.sendall(piece)
            os._exit(0)
        connection, _ = server.accept()
        buffer = bytearray(PIECE_BYTES)
        with connection:
            while connection.recv_into(buffer):
                pass
        os.waitpid(sender, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    add_keep_flag(parser, "stages")
    args = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    bodies = loader_task.make_bodies(args.messages, 1)
    log = loader_task.make_log(bodies, 0)
    body_bytes = sum(map(len, bodies)) / len(bodies)
    del bodies

    runs: list[tuple[float, Seconds]] = []
    rows: list[bytes] = []
    for _ in range(args.rounds):
        seconds: Seconds = defaultdict(float)
        rows.clear()
        with clocks(seconds, rows):
            rate = loader_task.load(log, args.messages, loader_task.V1, "snappy")
        runs.append((args.messages / rate, seconds))
    total_s, stage_s = min(runs, key=lambda run: run[0])

    batches = [batch for _, batch in log]
    # All rows, approximated by repeating the first blocks.
    row_bytes = int(args.messages * (body_bytes + ROW_SUFFIX_BYTES))
    blocks = [rows[number % len(rows)] for number in range(max(1, round(row_bytes / len(rows[0]))))]
    small = [bytes(cramjam.snappy.compress_raw(block)) for block in rows]
    files = [small[number % len(small)] for number in range(len(blocks))]
    buffer = bytearray(max(map(cramjam.snappy.compress_raw_max_len, blocks)))
    minimum_s = {
        "receiving": best(lambda: received(batches), args.rounds),
        "CRC-32C of batches": best(lambda: [crc32c(batch) for batch in batches], args.rounds),
        "core": best(lambda: [bytearray(block) for block in blocks], args.rounds),
        "snappy": best(lambda: [cramjam.snappy.compress_raw_into(block, buffer) for block in blocks], args.rounds),
        "CRC-32 of blocks": best(lambda: [zlib_ng.crc32(block) for block in blocks], args.rounds),
        CHECKSUM: best(lambda: [Checksum().update(file) for file in files], args.rounds),
        "writing and fsync": best(lambda: written(files), args.rounds),
    }
    about = describe_run(
        "one core",
        f"{args.messages:,} messages of {body_bytes:.0f} bytes and {len(loader_task.FIELDS)} fields",
        f"snappy, best of {args.rounds}",
    )
    lines = ["| stage | in the task, µs/message | minimum |", "|---|---|---|"]

    def row(name: str, in_task: float | None, minimum: float | None) -> None:
        cells = ("" if one is None else f"{one / args.messages * 1e6:.3f}" for one in (in_task, minimum))
        lines.append(f"| {name} | {' | '.join(cells)} |")

    for stage, minimum in minimum_s.items():
        row(stage, stage_s.get(stage), minimum)
    row("rest", total_s - sum(stage_s.values()), None)
    row("all", total_s, sum(minimum_s.values()) - minimum_s["receiving"])
    table = "\n".join((*lines, "", f"{args.messages / total_s:,.0f} messages/s"))
    print(f"{about}\n\n{table}")
    if args.keep:
        append_result("stages", about, table)


if __name__ == "__main__":
    main()
