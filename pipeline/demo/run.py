"""`headrace demo`: a year of real flights from producer to Hive table, with a schema change in the middle.

Everything runs as a user would run it: `headrace up`, the Producer, `headrace load`, Spark SQL on the tables; or, in
another `DemoEnvironment`, the servers of a cluster. The answers are then computed a second time, straight from the data set, and
must be the same.
"""

from __future__ import annotations

import importlib.resources
import shutil
import subprocess
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
    Event,
    Row,
    Topic,
    find_data,
    flight_event_v2,
    is_second_half,
    read_rows,
)
from headrace.pipeline.demo.environment import DemoEnvironment, LocalEnvironment, RunQuery
from headrace.pipeline.demo.queries import QUERIES, DemoQuery, Table, as_text, differences, numeric_columns
from headrace.pipeline.text_table import table_lines
from headrace.registry.client.of_settings import registry_client
from headrace.registry.errors import IncompatibleSchema
from headrace.settings import Settings
from headrace.settings.addresses import live_addresses

MARKER = ".made-by-headrace-demo"
BAR_CHARS = 30
REDRAW_S = 0.1
LINE_EVERY_S = 5.0
BATCH = 1_000  # events between two updates of the progress bar


class DemoError(Exception):
    """The demo could not run to its end; the message is one line for the user."""


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events of a topic that are sent together: those of its rows that `has_row` takes, made into events by `event`."""

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
    """How the demo ended: the questions whose answers differed, and whether the audit found everything complete."""

    wrong: tuple[str, ...]
    audit_complete: bool

    @property
    def right(self) -> bool:
        return not self.wrong and self.audit_complete


def run_demo(settings: Settings, environment: Mapping[str, str], out: TextIO) -> DemoResult:
    """Runs the whole demo on this machine in `settings.data_dir`, which it empties first if an earlier demo made it.

    Raises:
        DemoError: something could not be done; the message says what and where the log is.
    """
    data = find_data()
    data_dir = settings.data_dir.resolve()
    prepare_directory(data_dir)
    return run_demo_in(LocalEnvironment(data_dir, environment), data, data_dir / "logs", out)


def run_demo_in(place: DemoEnvironment, data: Path, log_dir: Path, out: TextIO) -> DemoResult:
    """Runs the whole demo where it is told to, and stops everything there again.

    Raises:
        DemoError: something could not be done; the message says what and where the log is.
    """
    demo = _Demo(place, data, log_dir, out)
    started = time.monotonic()
    try:
        demo.start()
        demo.first_half()
        demo.evolve()
        demo.second_half()
        wrong = demo.ask()
        complete = demo.audit()
    finally:
        demo.stop()
    verdict = DemoResult(tuple(wrong), complete)
    demo.print_result(verdict, time.monotonic() - started)
    return verdict


def schema_text(name: str) -> str:
    """One of the demo's schemas, such as `flights-v1`."""
    directory = importlib.resources.files("headrace.pipeline.demo") / "schemas"
    return (directory / f"{name}.avsc").read_text(encoding="utf-8")


def events_of(data: Path, sent: EventBatch) -> list[Event]:
    topic = TOPICS[sent.topic]
    return [sent.event(topic.event(row)) for row in read_rows(data, topic.file) if sent.has_row(row)]


class _Demo:
    def __init__(self, place: DemoEnvironment, data: Path, log_dir: Path, out: TextIO) -> None:
        self._place = place
        self._data = data
        self._log_dir = log_dir
        self._out = out
        self._reader = ThreadPoolExecutor(max_workers=1)
        self._read: dict[EventBatch, Future[list[Event]]] = {}

    def start(self) -> None:
        self._say("Starting the servers")
        started = time.monotonic()
        self._read_ahead(FIRST_HALF)
        self._place.start(self._detail)
        self._detail(f"ready after {time.monotonic() - started:.1f} s")

    def stop(self) -> None:
        self._reader.shutdown(cancel_futures=True)
        self._place.stop()

    def first_half(self) -> None:
        self._say("Producing January to June: airlines, airports, planes, weather and flights under schema v1")
        self._produce_all(FIRST_HALF)
        # While the load starts Spark and waits for the metastore, the rest is read.
        self._read_ahead(SECOND_HALF)
        self._load()

    def evolve(self) -> None:
        self._say("Changing the schema of flights")
        client = registry_client(self._place.settings)
        registered = client.register("flights-value", schema_text("flights-v2"))
        self._detail(f"v2 registered as version {registered.version or 2}, id {registered.schema_id}:")
        for text in (
            "field feed added with a default; distance widened from int to long;",
            "tailnum renamed to tail_number with an alias; the record header grown by region",
        ):
            self._detail(f"  {text}")
        try:
            client.register("flights-value", schema_text("flights-v3"))
        except IncompatibleSchema:
            self._detail("v3 refused, as it must be:")
        else:
            raise DemoError("the registry took the incompatible v3 of flights")
        history = [
            VersionedSchema(number, parse_schema(schema_text(f"flights-v{number}"), source=f"flights-v{number}.avsc"))
            for number in (1, 2)
        ]
        candidate = parse_schema(schema_text("flights-v3"), source="flights-v3.avsc")
        for line in text_report(check_level(candidate, history, CompatibilityLevel.BACKWARD)).splitlines():
            self._detail(f"  {line}")

    def second_half(self) -> None:
        self._say("Producing July to December: weather, and flights under schema v2")
        self._produce_all(SECOND_HALF)
        self._load()

    def ask(self) -> list[str]:
        """Asks every question in SQL and returns the titles of those answered wrongly."""
        self._say("Asking the Hive tables in SQL, and the data set itself")
        with ThreadPoolExecutor(max_workers=1) as aside:
            # The data set is asked while the engine starts and reads.
            expected = [aside.submit(question.expected, self._data) for question in QUERIES]
            with self._place.engine(self._detail) as ask:
                return [
                    question.title
                    for question, answer in zip(QUERIES, expected, strict=True)
                    if not self._is_answered_right(ask, question, answer.result())
                ]

    def _is_answered_right(self, ask: RunQuery, question: DemoQuery, expected: Table) -> bool:
        started = time.monotonic()
        found = ask(question.sql)
        self._detail("")
        self._detail(f"{question.title}  ({time.monotonic() - started:.1f} s)")
        self._table(question.columns, as_text(found), numeric_columns(expected))
        different = differences(found, expected)
        for line in different[:5]:
            self._detail(f"  WRONG: {line}")
        if not different:
            self._detail("  the data set says the same")
        return not different

    def audit(self) -> bool:
        self._say("Auditing: what producers sent, what the broker holds, what the tables got")
        run = self._headrace("audit", "report")
        for line in run.stdout.splitlines():
            self._detail(line)
        if run.returncode not in (0, 1):
            raise DemoError(f"the audit could not tell: {_last_line(run.stderr)}")
        return run.returncode == 0

    def print_result(self, verdict: DemoResult, seconds: float) -> None:
        self._say(f"Done in {seconds:.0f} s")
        if verdict.wrong:
            self._detail(f"WRONG answers: {'; '.join(verdict.wrong)}")
        if not verdict.audit_complete:
            self._detail("the audit found events that did not arrive once")
        if verdict.right:
            self._detail("every answer is right and every event arrived exactly once")
        self._detail("Where to look next:")
        for command in self._place.next_steps():
            self._detail(f"  {command}")

    def _read_ahead(self, batches: Iterable[EventBatch]) -> None:
        self._read = {one: self._reader.submit(events_of, self._data, one) for one in batches}

    def _produce_all(self, batches: Iterable[EventBatch]) -> None:
        events, seconds = 0, 0.0
        for one in batches:
            count, took = self._produce(TOPICS[one.topic], schema_text(one.schema), self._read.pop(one).result())
            events, seconds = events + count, seconds + took
        self._detail(f"{events:,} events acknowledged, {events / max(seconds, 1e-6):,.0f}/s")

    def _produce(self, topic: Topic, schema: str, listed: Sequence[Event]) -> tuple[int, float]:
        """Sends the events and waits until all are acknowledged; returns how many and the seconds it took."""
        progress = Progress(f"  {topic.name}", len(listed), self._out)
        key = topic.key
        original = [key(event) for event in listed]
        with Producer(self._place.settings, app="headrace-demo") as producer:
            for start in range(0, len(listed), BATCH):
                batch = listed[start : start + BATCH]
                for event, event_key in zip(batch, original[start : start + BATCH], strict=True):
                    producer.send(topic.name, event, key=event_key, schema=schema)
                progress.add(len(batch))
            producer.flush(timeout_s=120)
        return len(listed), progress.finish()

    def _load(self) -> None:
        self._say("Loading (headrace load)")
        run = self._headrace("load")
        for line in run.stdout.splitlines():
            self._detail(line)
        if run.returncode != 0:
            raise DemoError(f"the load ended with code {run.returncode}: {_last_line(run.stderr)}")

    def _headrace(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs a command as a user would, with its log kept beside the others."""
        command = self._place.command(*arguments)
        run = subprocess.run(
            command.words,
            capture_output=True,
            text=True,
            env=command.environment,
            cwd=command.directory,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        with (self._log_dir / f"{arguments[0]}.log").open("a", encoding="utf-8") as log:
            log.write(run.stderr)
        return run

    def _table(self, columns: Iterable[str], rows: Iterable[Iterable[str]], right: Iterable[int]) -> None:
        for line in table_lines(list(columns), [list(row) for row in rows], tuple(right)):
            self._detail(f"  {line}")

    def _say(self, text: str) -> None:
        self._out.write(f"\n== {text}\n")
        self._out.flush()

    def _detail(self, text: str) -> None:
        self._out.write(f"   {text}".rstrip() + "\n")
        self._out.flush()


class Progress:
    """Counts up to `total` things; `add` is cheap enough to call in batches of a thousand."""

    def __init__(self, label: str, total: int, out: TextIO) -> None:
        self._label = label
        self._total = max(1, total)
        self._out = out
        self._bar = out.isatty()
        self._count = 0
        self._start = time.monotonic()
        self._shown = 0.0 if self._bar else self._start

    def add(self, count: int) -> None:
        self._count += count
        now = time.monotonic()
        if now - self._shown >= (REDRAW_S if self._bar else LINE_EVERY_S):
            self._shown = now
            self._show(now)

    def finish(self) -> float:
        """Shows the final state and returns the seconds that it took."""
        now = time.monotonic()
        self._show(now)
        if self._bar:
            self._out.write("\n")
            self._out.flush()
        return now - self._start

    def _show(self, now: float) -> None:
        share = min(1.0, self._count / self._total)
        rate = self._count / max(1e-6, now - self._start)
        text = f"{self._label}  {self._count:,} of {self._total:,} ({share:.0%}), {rate:,.0f}/s"
        if self._bar:
            filled = round(share * BAR_CHARS)
            self._out.write(f"\r\x1b[K{'█' * filled}{'░' * (BAR_CHARS - filled)} {text}")
        else:
            self._out.write(f"{text}\n")
        self._out.flush()


def prepare_directory(data_dir: Path) -> None:
    """An empty directory with the demo's mark; whatever else is there is never deleted."""
    marker = data_dir / MARKER
    try:
        if data_dir.exists() and any(data_dir.iterdir()):
            if not marker.is_file():
                raise DemoError(f"{data_dir} is not empty and was not made by the demo; name another --data-dir")
            running = live_addresses(Settings(data_dir=data_dir))
            if running is not None:
                raise DemoError(f"`headrace up` (process {running.pid}) runs on {data_dir}; stop it first")
            shutil.rmtree(data_dir)
        (data_dir / "logs").mkdir(parents=True)
        marker.write_text("This directory is emptied when the demo runs again.\n", encoding="utf-8")
    except OSError as error:
        raise DemoError(f"cannot write to {error.filename}: {error.strerror}") from error


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("headrace: ") if lines else "it said nothing"
