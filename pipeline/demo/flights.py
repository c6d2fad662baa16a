"""`headrace demo`: a year of real flights from producer to Hive table, with a schema change halfway.

The demo uses what users use: `headrace up`, the Producer, `headrace load` and Spark SQL; or, in another
`DemoEnvironment`, the servers of a cluster. The expected results are computed directly from the data set and compared.
"""

from __future__ import annotations

import importlib.resources
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from headrace.avro_schema import parse_schema
from headrace.clients.producer import Producer
from headrace.compat.levels import CompatibilityLevel, VersionedSchema, check_level
from headrace.compat.report import text_report
from headrace.pipeline.demo.data import (
    TOPICS,
    DemoTopic,
    Event,
    Row,
    find_data,
    flight_event_v2,
    is_second_half,
    read_rows,
)
from headrace.pipeline.demo.environment import DemoEnvironment, LocalEnvironment
from headrace.pipeline.demo.queries import QUERIES
from headrace.pipeline.demo.steps import DemoError, DemoSteps, Progress, prepare_directory
from headrace.registry.client.of_settings import registry_client
from headrace.registry.errors import IncompatibleSchema
from headrace.settings import Settings

BATCH_EVENTS = 1_000  # events between updates of the progress bar


@dataclass(frozen=True, slots=True)
class EventBatch:
    """A batch of events that the demo sends to a topic.

    Attributes:
        schema: name of the schema with which they are written.
        has_row: returns whether a row of the data set belongs to the batch.
        event: converts an event of the first schema to `schema`.
    """

    topic: str
    schema: str
    has_row: Callable[[Row], bool] = lambda row: True
    event: Callable[[Event], Event] = lambda event: event


FIRST_HALF = (
    *(EventBatch(name, name) for name in ("airlines", "airports", "planes")),
    EventBatch("weather", "weather", lambda row: not is_second_half(row)),
    EventBatch("flights", "flights-v1", lambda row: not is_second_half(row)),
)
SECOND_HALF = (
    EventBatch("weather", "weather", is_second_half),
    EventBatch("flights", "flights-v2", is_second_half, flight_event_v2),
)


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The titles of the queries with wrong results, and whether the audit found all events complete."""

    wrong_queries: tuple[str, ...]
    is_audit_complete: bool

    @property
    def is_correct(self) -> bool:
        return not self.wrong_queries and self.is_audit_complete


def run_demo(
    settings: Settings, environment: Mapping[str, str], out: TextIO, wait: Callable[[], None] | None = None
) -> DemoResult:
    """Runs the demo on this machine in `settings.data_dir`. Empties the directory first if an earlier demo created it.

    Args:
        environment: environment variables for the commands of the demo.
        out: stream for the progress.
        wait: called at the end, while the servers run; None stops them at once.

    Raises:
        DemoError: the directory cannot be used, or a step failed; the message has the reason.
        DemoDataError: the data set is not installed, or lacks a file.
        UpError: a server did not start; the message has the reason and the path of its log.
    """
    data = find_data()
    data_dir = settings.data_dir.resolve()
    prepare_directory(data_dir)
    return run_demo_in(LocalEnvironment(data_dir, environment), data, data_dir / "logs", out, wait)


def run_demo_in(
    environment: DemoEnvironment, data: Path, log_dir: Path, out: TextIO, wait: Callable[[], None] | None = None
) -> DemoResult:
    """Runs the demo in the given environment, and stops the environment at the end.

    Args:
        data: directory of the data set's CSV files.
        log_dir: directory for the logs of the commands.
        out: stream for the progress.
        wait: called at the end, while the servers run; None stops them at once.

    Raises:
        DemoError: a command failed, or the registry accepted an incompatible schema; the message has the reason.
        DemoDataError: the data set lacks a file.
        Exception: `environment` raised it, such as UpError of a server that did not start.
    """
    demo = _Demo(environment, data, log_dir, out)
    started = time.monotonic()
    try:
        demo.start()
        demo.first_half()
        demo.evolve()
        demo.second_half()
        wrong_queries = demo.compare_queries()
        result = DemoResult(tuple(wrong_queries), demo.audit())
        demo.print_result(result, time.monotonic() - started)
        if wait is not None and environment.console_url():
            demo.print_console()
            wait()
    finally:
        demo.stop()
    return result


def schema_text(name: str) -> str:
    """Returns the Avro schema text of the demo's schema with this name, such as `flights-v1`."""
    directory = importlib.resources.files("headrace.pipeline.demo") / "schemas"
    return (directory / f"{name}.avsc").read_text(encoding="utf-8")


def events_of(data: Path, batch: EventBatch) -> list[Event]:
    topic = TOPICS[batch.topic]
    return [batch.event(topic.event(row)) for row in read_rows(data, topic.file) if batch.has_row(row)]


class _Demo(DemoSteps):
    def __init__(self, environment: DemoEnvironment, data: Path, log_dir: Path, out: TextIO) -> None:
        super().__init__(environment, log_dir, out)
        self._data = data
        self._reader = ThreadPoolExecutor(max_workers=1)
        self._read_batches: dict[EventBatch, Future[list[Event]]] = {}

    def start(self) -> None:
        self.print_heading("Starting the servers")
        started = time.monotonic()
        self._read_ahead(FIRST_HALF)
        self.environment.start(self.print_detail)
        self.print_detail(f"ready after {time.monotonic() - started:.1f} s")

    def stop(self) -> None:
        self._reader.shutdown(cancel_futures=True)
        self.environment.stop()

    def first_half(self) -> None:
        self.print_heading("Producing January to June: airlines, airports, planes, weather and flights under schema v1")
        self._produce_all(FIRST_HALF)
        # The second half is read while the load starts Spark and waits for the metastore.
        self._read_ahead(SECOND_HALF)
        self.load()

    def evolve(self) -> None:
        self.print_heading("Changing the schema of flights")
        client = registry_client(self.environment.settings)
        registered = client.register("flights-value", schema_text("flights-v2"))
        self.print_detail(f"v2 registered as version {registered.version or 2}, id {registered.schema_id}:")
        for text in (
            "field feed added with a default; distance widened from int to long;",
            "tailnum renamed to tail_number with an alias; the record header grown by region",
        ):
            self.print_detail(f"  {text}")
        try:
            client.register("flights-value", schema_text("flights-v3"))
        except IncompatibleSchema:
            self.print_detail("v3 rejected, as expected:")
        else:
            raise DemoError("the registry accepted the incompatible v3 of flights")
        history = [
            VersionedSchema(number, parse_schema(schema_text(f"flights-v{number}"), source=f"flights-v{number}.avsc"))
            for number in (1, 2)
        ]
        candidate = parse_schema(schema_text("flights-v3"), source="flights-v3.avsc")
        for line in text_report(check_level(candidate, history, CompatibilityLevel.BACKWARD)).splitlines():
            self.print_detail(f"  {line}")

    def second_half(self) -> None:
        self.print_heading("Producing July to December: weather, and flights under schema v2")
        self._produce_all(SECOND_HALF)
        self.load()

    def compare_queries(self) -> list[str]:
        """Runs every query of the demo and returns the titles of those whose result differs from the expected one."""
        self.print_heading("Querying the Hive tables, and computing the expected results from the data set")
        with ThreadPoolExecutor(max_workers=1) as pool:
            # The expected results are computed while the engine starts and caches the tables.
            expected = [pool.submit(query.expected, self._data) for query in QUERIES]
            with self.environment.engine(self.print_detail) as run_query:
                return [
                    query.title
                    for query, expected_result in zip(QUERIES, expected, strict=True)
                    if not self.is_as_expected(run_query, query, expected_result.result())
                ]

    def print_result(self, result: DemoResult, duration_s: float) -> None:
        self.print_heading(f"Done in {duration_s:.0f} s")
        if result.wrong_queries:
            self.print_detail(f"WRONG results: {'; '.join(result.wrong_queries)}")
        if not result.is_audit_complete:
            self.print_detail("the audit found missing or duplicated events")
        if result.is_correct:
            self.print_detail("all results are correct, and every event arrived exactly once")
        self.print_detail("Next steps:")
        for command in self.environment.next_steps():
            self.print_detail(f"  {command}")

    def print_console(self) -> None:
        self.print_heading("The servers run until you press Ctrl-C. Each window of the year, in the console:")
        self.print_detail(self.environment.console_url())

    def _read_ahead(self, batches: Iterable[EventBatch]) -> None:
        self._read_batches = {batch: self._reader.submit(events_of, self._data, batch) for batch in batches}

    def _produce_all(self, batches: Iterable[EventBatch]) -> None:
        count, duration_s = 0, 0.0
        for batch in batches:
            batch_count, batch_s = self._produce(
                TOPICS[batch.topic], schema_text(batch.schema), self._read_batches.pop(batch).result()
            )
            count, duration_s = count + batch_count, duration_s + batch_s
        self.print_detail(f"{count:,} events acknowledged, {count / max(duration_s, 1e-6):,.0f}/s")

    def _produce(self, topic: DemoTopic, schema: str, events: Sequence[Event]) -> tuple[int, float]:
        """Sends events to a topic and waits for their acknowledgement. Returns their number and the seconds taken.

        Args:
            schema: text of the schema that they are written with.
            events: the events to send.
        """
        progress = Progress(f"  {topic.name}", len(events), self._out)
        key = topic.key
        keys = [key(event) for event in events]
        with Producer(self.environment.settings, app="headrace-demo") as producer:
            for start in range(0, len(events), BATCH_EVENTS):
                batch = events[start : start + BATCH_EVENTS]
                for event, event_key in zip(batch, keys[start : start + BATCH_EVENTS], strict=True):
                    producer.send(topic.name, event, key=event_key, schema=schema)
                progress.add(len(batch))
            producer.flush(timeout_s=120)
        return len(events), progress.finish()
