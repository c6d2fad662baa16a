"""Measures MB/s of finished Avro files on HDFS and in a bucket, and of Spark's Avro sink: `python -m bench.storage`.

Both write the same rows (12 fields, about 150 bytes of Avro each) to the same hours with the same codec, from memory,
in one Spark session on one core; the best of several rounds counts. `headrace` makes blocks in Python workers and
writes them with Spark's text sink, as loads do (`loader.job.write_rows`), and then renames every file. `spark avro` is
`df.write.partitionBy("hour").format("avro")`. The rows in the files of both are counted and compared. Python workers
and the JVM share the machine, so pin the benchmark to one core (`taskset -c 0`) for a strict comparison.

HDFS and S3 are those of the tests, on this machine: NameNode and DataNode from Maven Central, S3 in this process.
`--keep` appends the output to `bench/results/storage.md`.

Exit code 1: on a target, ours is slower than Spark's sink, each in its fastest round.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import fastavro

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from bench.support.results import add_keep_flag, append_result, as_printed, describe_run  # noqa: E402
from headrace.hive_ddl.executors.session import (  # noqa: E402
    close_session,
    open_session_without_metastore,
    session_properties,
    shared_jvm,
)
from headrace.loader.job import ResultsAccumulator, write_rows  # noqa: E402
from headrace.loader.storage.hadoop import hadoop_storage  # noqa: E402
from headrace.loader.storage.hadoop.file_system import RemoteFileSystem  # noqa: E402
from headrace.loader.storage.hadoop.jvm import FILE_SYSTEMS  # noqa: E402
from headrace.loader.storage.protocols import Publication, Storage  # noqa: E402
from headrace.loader.work_unit import FileKind, FileRange  # noqa: E402
from headrace.loader.write.container import ContainerFormat  # noqa: E402
from headrace.loader.write.file_rows import Row, RowSink, new_text_sync, row_file, rows_of  # noqa: E402
from headrace.loader.write.task_files import TaskFiles  # noqa: E402
from headrace.pipeline.java import ensure_java  # noqa: E402
from support.servers.hdfs import Hdfs  # noqa: E402
from support.servers.s3_server import BUCKET, S3Server, s3a_jars  # noqa: E402

SPARK_AVRO = "4.1.1"  # the newest release on Maven Central for Scala 2.13; Spark's sources of it have not changed since
FIELDS = [
    *({"name": f"id{number}", "type": "long"} for number in range(4)),
    *({"name": f"name{number}", "type": "string"} for number in range(5)),
    *({"name": f"share{number}", "type": "double"} for number in range(3)),
]
SCHEMA = json.dumps({"type": "record", "name": "Row", "fields": FIELDS})
BLOCK_BYTES = 1024 * 1024
RATIO_MIN = 1.0
"""Least permitted ratio of our rate to that of Spark's sink."""
CHUNK_ROWS = 2_000  # created once and written repeatedly: only writing is measured


def values(number: int) -> dict[str, Any]:
    digest = hashlib.sha256(str(number).encode()).hexdigest()
    row: dict[str, Any] = {f"id{i}": int(digest[i * 12 : i * 12 + 12], 16) for i in range(4)}
    row |= {f"name{i}": digest[i * 9 : i * 9 + 14 + i] for i in range(5)}
    return row | {f"share{i}": number / (i + 3) for i in range(3)}


def encoded() -> list[bytes]:
    parsed = fastavro.parse_schema(json.loads(SCHEMA))
    rows = []
    for number in range(CHUNK_ROWS):
        body = io.BytesIO()
        fastavro.schemaless_writer(body, parsed, values(number))
        rows.append(body.getvalue())
    return rows


def headrace_rows(bodies: list[bytes], chunks: int, hours: int, sync: str, files: list[Any]) -> Iterator[Row]:
    """A task as of `loader.job.write_rows`: yields the blocks of the files that contain the rows, as rows for Spark's
    text sink.

    Args:
        bodies: encoded rows of one chunk.
        chunks: how often they are written; each chunk belongs to one hour, in turn.
        hours: number of hours, with a file each.
        sync: the sync marker of the files.
        files: receives the descriptions of the files.
    """

    def work(put: Callable[[Row], None]) -> None:
        formats = ContainerFormat(SCHEMA, "snappy", sync.encode())
        sink = RowSink(put, sync.encode(), 0)
        task = TaskFiles(sink, lambda *_: formats, {}, block_bytes=BLOCK_BYTES, file_bytes_target=1 << 40)
        rows = b"".join(bodies)
        for chunk in range(chunks):
            piece = FileRange(0, chunk * CHUNK_ROWS, (chunk + 1) * CHUNK_ROWS - 1, CHUNK_ROWS)
            task.add_rows((FileKind.DATA, "t", f"hour={chunk % hours:02}"), rows, piece)
        files.extend(task.finish())

    yield from rows_of(work)


def run_headrace(session: Any, storage: Storage, bodies: list[bytes], chunks: int, hours: int) -> None:
    sync, work = new_text_sync(), secrets.token_hex(4)
    directory = f"{storage.staging.location(work)}/1"
    results = session.sparkContext.accumulator((), ResultsAccumulator())

    def task(part: Any) -> Iterator[Row]:
        files: list[Any] = []
        for _ in part:
            yield from headrace_rows(bodies, chunks, hours, sync, files)
        results.add(tuple(files))

    write_rows(session, session.sparkContext.parallelize([0], 1).mapPartitions(task), sync, directory)
    written = storage.staging.written_files(directory)  # the type that Spark writes for
    storage.files.publish(
        [
            Publication(
                "t",
                work,
                f"1/{written[row_file(one.path)]}",
                f"{work}/{one.time_partition}.avro",
                one.length,
                one.checksum,
            )
            for one in results.value
        ]
    )


def measured(write: Callable[[], None], size: Callable[[], int], rounds: int) -> tuple[float, int]:
    """Runs several rounds. Returns the seconds of the fastest one, and the bytes written by the last one.

    Args:
        write: runs a round.
        size: returns the size of all files so far.
    """
    seconds, length = [], 0
    for _ in range(rounds):
        before, began = size(), time.monotonic()
        write()
        seconds.append(time.monotonic() - began)
        length = size() - before
    return min(seconds), length


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=200, help="of encoded rows")
    parser.add_argument("--hours", type=int, default=24, help="hours of the rows")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--targets", default="hdfs,s3a")
    add_keep_flag(parser, "storage")
    args = parser.parse_args()
    lines: list[str] = []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-bench-")))
        rates: dict[str, dict[str, float]] = {}
        for target, name, rate, line in _run(args, directory, stack):
            print(line, flush=True)
            lines.append(line)
            if target:
                best = rates.setdefault(target, {})
                best[name] = max(rate, best.get(name, 0.0))
    ratios = {target: best["headrace"] / best["spark avro"] for target, best in rates.items()}
    lines.append(f"ratio: {', '.join(f'{ratio:.2f} on {target}' for target, ratio in ratios.items())}")
    print(lines[-1])
    if args.keep:
        append_result("storage", describe_run("snappy", "one Spark task"), as_printed(lines))
    slower = slower_than_spark(ratios)
    if slower:
        print(f"below {RATIO_MIN} on {', '.join(slower)}", file=sys.stderr)
    return int(bool(slower))


def slower_than_spark(ratios: Mapping[str, float]) -> list[str]:
    """Returns the targets on which our rate is lower than that of Spark's sink.

    Args:
        ratios: our rate divided by Spark's, by target.
    """
    return [target for target, ratio in ratios.items() if ratio < RATIO_MIN]


def _run(args: argparse.Namespace, directory: Path, stack: ExitStack) -> Iterator[tuple[str, str, float, str]]:
    """Measures all targets. Yields for each result the target (hdfs or s3a), the contender, its MB/s of encoded rows,
    and a line to print. Lines that concern all targets have neither target nor contender."""
    extra = {"driver.memory": "1g"}
    base_uris = {}
    if "hdfs" in args.targets:
        hdfs = Hdfs(directory / "hdfs")
        stack.callback(hdfs.stop)
        base_uris["hdfs"] = f"{hdfs.uri}/bench"
        extra["hadoop.dfs.replication"] = "1"
        extra["hadoop.dfs.client.use.datanode.hostname"] = "true"
    jars = [_spark_avro(directory)]
    if "s3a" in args.targets:
        s3 = S3Server()
        stack.callback(s3.stop)
        base_uris["s3a"] = f"s3a://{BUCKET}/bench"
        extra |= s3.spark(directory)
        jars += s3a_jars()
    extra["jars"] = ",".join(jars)
    ensure_java(directory)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # otherwise workers run the first `python3` on the PATH
    properties = session_properties(
        app_name="bench", master="local[1]", metastore_uri=None, data_dir=directory, warehouse_uri=f"file://{directory}",
        extra=extra,
    )  # fmt: skip
    session = open_session_without_metastore(directory, properties)
    stack.callback(close_session, session)
    bodies = encoded()
    chunks = -(-args.megabytes * 1_000_000 // sum(map(len, bodies)))
    frame = _frame(session, chunks, args.hours)
    yield (
        "",
        "",
        0.0,
        f"{chunks * CHUNK_ROWS:,} rows, {args.megabytes} MB encoded, {args.hours} hours; best of {args.rounds}",
    )
    for target, base in base_uris.items():
        file_system = FILE_SYSTEMS[target](lambda: shared_jvm(directory, {}), base)
        storage = hadoop_storage(file_system, base)

        def write_headrace(storage: Storage = storage) -> None:
            run_headrace(session, storage, bodies, chunks, args.hours)

        def write_spark(base: str = base) -> None:
            frame.write.partitionBy("hour").format("avro").mode("append").save(f"{base}/spark")

        for name, write in (
            ("headrace", write_headrace),
            ("spark avro", write_spark),
            ("headrace", write_headrace),
            ("spark avro", write_spark),
        ):

            def size(files: RemoteFileSystem = file_system, base: str = base) -> int:
                return sum(file.length for file in files.files_below(base))

            seconds, length = measured(write, size, args.rounds)
            rate = args.megabytes / seconds
            files_rate = length / 1e6 / seconds
            yield target, name, rate, f"{target:5} {name:11} {rate:7.1f} MB/s of rows, {files_rate:6.1f} MB/s of files"


def _frame(session: Any, chunks: int, hours: int) -> Any:
    """Returns a cached Spark data frame with the rows that `headrace_rows` writes, decoded, and their hour."""
    rows = session.createDataFrame([tuple(values(n).values()) for n in range(CHUNK_ROWS)], [f["name"] for f in FIELDS])
    rows = rows.selectExpr(
        *(
            f"cast({field['name']} as {'bigint' if field['type'] == 'long' else field['type']}) {field['name']}"
            for field in FIELDS
        )
    )
    hours_frame = session.range(chunks).selectExpr(f"lpad(cast(id % {hours} as string), 2, '0') as hour")
    frame = hours_frame.crossJoin(rows.hint("broadcast")).coalesce(1).cache()
    frame.count()
    return frame


def _spark_avro(directory: Path) -> str:
    artefact = f"org.apache.spark:spark-avro_2.13:{SPARK_AVRO}"
    copy = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artefact}", f"-DoutputDirectory={directory}"]
    subprocess.run(copy, check=True, capture_output=True, timeout=600)
    return str(next(directory.glob("spark-avro*.jar")))


if __name__ == "__main__":
    sys.exit(main())
