"""The contenders of the loader's benchmark, each in a new process: `load_contenders.py JOB`, with a `Job` as JSON.

Prints a `Timing` as JSON. All contenders read the whole topic `Job.topic` and write snappy Avro files to a local disk.
The contenders with a JVM first load the topic `Job.warm`, which is not measured.
"""

from __future__ import annotations

import dataclasses
import io
import json
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PREFIX_BYTES = 5
HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Job:
    """The work of a contender.

    Attributes:
        brokers: bootstrap servers.
        registry: URL of the registry.
        topic: the topic to load.
        warm: a small topic that is loaded first, without being measured.
        schema: text of the writer schema.
        later: text of the reader schema; equal to `schema` for a topic with one version.
        directory: an empty directory for the files.
        jars: jars for Spark, separated by commas.
    """

    contender: str
    brokers: str
    registry: str
    topic: str
    warm: str
    messages: int
    schema: str
    later: str
    cores: int
    directory: str
    jars: str = ""


@dataclass(frozen=True, slots=True)
class Timing:
    """The times of a contender, and the size of its files in bytes.

    Attributes:
        seconds: time from its first request to the brokers to its last change of a table.
        task_seconds: time of the slowest task; 0 for a contender without tasks.
    """

    seconds: float
    task_seconds: float
    bytes: int


def naive(job: Job) -> Timing:
    """Loads in a loop with kafka-python and fastavro. Stores no offsets, counts nothing and changes no tables."""
    import fastavro
    from kafka import KafkaConsumer, TopicPartition

    writer, reader = (fastavro.parse_schema(json.loads(text)) for text in (job.schema, job.later))
    began = time.monotonic()
    consumer = KafkaConsumer(bootstrap_servers=job.brokers, enable_auto_commit=False)
    partitions = [TopicPartition(job.topic, number) for number in consumer.partitions_for_topic(job.topic)]
    consumer.assign(partitions)
    consumer.seek_to_beginning()
    files: dict[int, Any] = {}
    count = 0
    with ExitStack() as stack:
        while count < job.messages:
            for records in consumer.poll(timeout_ms=10_000).values():
                for record in records:
                    value = fastavro.schemaless_reader(io.BytesIO(record.value[PREFIX_BYTES:]), writer, reader)
                    hour = value["header"]["time"] // HOUR_MS
                    if hour not in files:
                        output = stack.enter_context(Path(job.directory, f"{hour}.avro").open("wb"))
                        files[hour] = fastavro.write.Writer(output, reader, codec="snappy", sync_interval=1 << 20)
                    files[hour].write(value)
                count += len(records)
        for file in files.values():
            file.flush()
    return Timing(time.monotonic() - began, 0, _size(job.directory))


def core(job: Job) -> Timing:
    """Runs a whole load: plans it, runs its tasks, commits, and applies the commit to files, audit, tables and
    partitions."""
    return _headrace(job, None)


def reference(job: Job) -> Timing:
    """Runs the same load without the compiled core."""
    from headrace.hive_ddl.executors.session import SparkSession
    from headrace.loader.job import run_on_pool

    def in_python(unit: Any) -> Any:
        from headrace import avro_codec
        from headrace.loader.task import run_work_unit

        avro_codec._CORE = None
        return run_work_unit(dataclasses.replace(unit, build=""))

    def run_units(units: Any) -> Any:
        return run_on_pool(SparkSession.getActiveSession().sparkContext, in_python, units, "reference")

    return _headrace(job, run_units)


def _headrace(job: Job, run_units: Callable[[Any], Any] | None) -> Timing:
    from headrace.loader.run import run_load
    from headrace.pipeline.java import ensure_java
    from headrace.pipeline.load import commit_log, open_load
    from headrace.settings import KafkaSettings, LoaderSettings, RegistrySettings, Settings

    directory = Path(job.directory)
    settings = Settings(
        data_dir=directory,
        registry=RegistrySettings(url=job.registry),
        kafka=KafkaSettings(bootstrap_servers=job.brokers),
        loader=LoaderSettings(tasks=job.cores),
        spark={"master": f"local[{job.cores}]"},
    )
    ensure_java(directory)
    log = commit_log(settings)
    log.open()
    with open_load(settings, log, sys.stderr) as load:

        def run(topic: str, ports: Any) -> Any:
            return run_load(ports, dataclasses.replace(load.settings, topics_include=(topic,)))

        run(job.warm, load.ports)
        ports = load.ports if run_units is None else dataclasses.replace(load.ports, run_units=run_units)
        began = time.monotonic()
        report = run(job.topic, ports)
        seconds = time.monotonic() - began
    assert not report.has_findings, report.problems
    loaded = sum(one.rows for one in report.loaded)
    assert loaded == job.messages, f"{loaded} of {job.messages} messages were loaded"
    return Timing(seconds, report.read_ms / 1000, _size(str(directory / "warehouse" / job.topic)))


def spark(job: Job) -> Timing:
    """Loads with Spark's Kafka source, `from_avro` and Avro sink, which run in the JVM. Writes one directory, without
    time partitions, and changes no tables."""
    from headrace.hive_ddl.executors.session import close_session, open_session_without_metastore, session_properties
    from headrace.pipeline.java import ensure_java

    directory = Path(job.directory)
    ensure_java(directory)
    properties = session_properties(
        app_name="bench", master=f"local[{job.cores}]", metastore_uri=None, data_dir=directory,
        warehouse_uri=f"file://{directory}", extra={"jars": job.jars, "driver.memory": "4g"},
    )  # fmt: skip
    session = open_session_without_metastore(directory, properties)
    try:
        _spark_load(session, job, job.warm)
        began = time.monotonic()
        _spark_load(session, job, job.topic)
        seconds = time.monotonic() - began
        written = session.read.format("avro").load(f"{job.directory}/{job.topic}").count()
    finally:
        close_session(session)
    assert written == job.messages, f"{written} of {job.messages} messages were loaded"
    return Timing(seconds, 0, _size(f"{job.directory}/{job.topic}"))


def _spark_load(session: Any, job: Job, topic: str) -> None:
    from pyspark.sql import functions
    from pyspark.sql.avro.functions import from_avro

    source = session.read.format("kafka").option("kafka.bootstrap.servers", job.brokers).option("subscribe", topic)
    bodies = source.load().select(
        functions.expr(f"substring(value, {PREFIX_BYTES + 1})").alias("body"), "partition", "offset", "timestamp"
    )
    options = {} if job.later == job.schema else {"avroSchema": job.later}
    rows = bodies.select(
        from_avro("body", job.schema, options).alias("row"),
        functions.struct("partition", "offset", "timestamp").alias("kafka"),
    ).select("row.*", "kafka")
    rows.write.format("avro").option("compression", "snappy").save(f"{job.directory}/{topic}")


def _size(directory: str) -> int:
    return sum(path.stat().st_size for path in Path(directory).rglob("*.avro"))


CONTENDERS = {one.__name__: one for one in (naive, reference, core, spark)}

if __name__ == "__main__":
    given = Job(**json.loads(sys.argv[1]))
    print(json.dumps(dataclasses.asdict(CONTENDERS[given.contender](given))))
