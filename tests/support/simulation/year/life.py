"""Simulates the days of a year: producers, events, a load, and the checks after it."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.audit.errors import AuditError
from headrace.audit.storage.store import AuditStore
from headrace.hive_ddl.errors import HiveDdlError
from headrace.hive_ddl.executors.base import Executor
from headrace.kafka_wire.errors import KafkaError
from headrace.loader.commit.document import write_document
from headrace.loader.errors import LoaderError
from headrace.loader.report import RunReport
from headrace.loader.rewrite.run import RewriteReport
from headrace.loader.run import run_load
from headrace.registry.errors import RegistryError
from support.loader.loader_samples import POLICY
from support.simulation.faults import Faults
from support.simulation.power_loss import Killed
from support.simulation.year.broker import BrokerTopic, PartitionLog
from support.simulation.year.judge import Judge
from support.simulation.year.reader import Reader
from support.simulation.year.schemas import EvolvingRecord, next_version
from support.simulation.year.story import Encoder, Expectation, Kind, Loss, Message, Story
from support.simulation.year.world import DAY_MS, HOUR_MS, YearWorld

REPORTED_ERRORS = (KafkaError, LoaderError, HiveDdlError, AuditError, RegistryError, OSError)
"""Errors that `headrace load` reports in one line. Any other error of a load is a bug."""

LATE_DAYS_MAX = 20
RUNS_UNTIL_REPORT_MAX = 6
"""Number of loads within which an expected sentence must be in a report."""

ALWAYS_REPORTED = (
    r"^[^:]+: not on the brokers now",
    r"applies to new tables only",
    r"are dated further after their arrival than loader.future_max allows",
    r"which was registered during this load; the next load reads them",
    r"would remove fields of existing rows",
)


@dataclass
class Topic:
    """A topic and its producers.

    Attributes:
        chance: its source of randomness.
        rate: mean number of messages on an active day.
        share: share of active days.
        born: the day on which it is created.
        record: the newest version of its schema.
        versions: all versions with their schema ids.
        log: how often it has been created.
        is_busy: whether an event runs; events of a topic do not overlap.
        is_quiet: whether its producers pause.
        bad_share: share of malformed messages.
    """

    name: str
    chance: random.Random
    rate: int
    share: float
    partitions: int
    born: int
    record: EvolvingRecord
    versions: list[tuple[EvolvingRecord, int]] = field(default_factory=list)
    log: int = 0
    is_busy: bool = False
    is_quiet: bool = False
    bad_share: float = 0.004

    @property
    def subject(self) -> str:
        return f"{self.name}-value"


Script = Callable[["Life", Topic], Iterator[None]]
"""An event, as a generator. It yields for each load that it waits for."""


@dataclass(frozen=True, slots=True)
class Happening:
    day: int
    name: str
    script: Script
    topic: str


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of the loader's metadata at the end of a day.

    Attributes:
        state_bytes: size of a checkpoint without the schemas in it.
        run_ids: number of stored run ids.
        days: number of days with files, summed over the topics, including deleted ones.
        files: number of files by directory.
    """

    day: int
    checkpoint_bytes: int
    state_bytes: int
    topics: int
    partitions: int
    commits: int
    run_ids: int
    days: int
    files: Mapping[str, int]


class Life:
    """Simulates a warehouse for a number of days.

    Args:
        seed: determines everything random.
        hive: the metastore; None for one in memory.
        between: called after each load.
    """

    def __init__(
        self,
        root: Path,
        seed: int,
        topics: Sequence[Topic],
        *,
        hive: Executor | None = None,
        between: Callable[[Life], None] = lambda life: None,
    ) -> None:
        self.seed = seed
        self._between = between
        self.chance = random.Random(f"{seed}/life")
        self.world = YearWorld(root, seed, hive)
        self.log = self.world.log()  # for checks; each load opens its own, as a process does
        self.topics = {topic.name: topic for topic in topics}
        self.story = Story(seed)
        self.judge = Judge(self.story)
        self.reader = Reader(lambda: self.world.hive, self.judge.take)
        self.encode = Encoder()
        self.day = 0
        self.is_rough = False  # the newest load had an injected fault
        self.rough_reasons: set[str] = set()
        self.is_alone = False  # the next report is for one script
        self.is_frozen = False  # no schema is registered
        self.error: BaseException | None = None
        self.report: RunReport | None = None
        self.fault: Faults | None = None
        self.clock_shift_ms = 0
        self.event_counts: Counter[str] = Counter()
        self.sizes: list[Size] = []
        self.lost: Counter[Loss] = Counter()
        self._start_ms = self.world.clock_ms
        self._running: list[tuple[Happening, Iterator[None]]] = []
        self._slot = 0
        self._audited = 0
        self._calls = 400
        for pattern in ALWAYS_REPORTED:
            self.story.expect("", pattern, "at any time")

    # Producers.

    @property
    def true_ms(self) -> int:
        """The simulated time; the loader's clock may differ from it."""
        return self._start_ms + self.day * DAY_MS

    def create(self, topic: Topic, *, reports_topic_id: bool = True) -> None:
        topic.log += 1
        logs = [PartitionLog(number % self.world.cluster.brokers) for number in range(topic.partitions)]
        self.world.cluster.topics[topic.name] = BrokerTopic(f"{topic.name}-{topic.log}", logs, reports_topic_id)

    def register(self, topic: Topic) -> int:
        metadata = {"headrace.time": "happened"} if topic.record.time == "property" else {}
        schema_id: int = self.world.registry.register(topic.subject, topic.record.text(), metadata)
        topic.versions.append((topic.record, schema_id))
        return schema_id

    def may_register(self) -> Iterator[None]:
        while self.is_frozen:
            yield

    def evolve(self, topic: Topic) -> None:
        before = topic.record
        topic.record = next_version(before, len(topic.versions) + 1, topic.chance)
        self.register(topic)
        self.record_event(topic, f"version {len(topic.versions)}: {topic.record.text()}")

    def logs(self, topic: Topic) -> list[PartitionLog]:
        found: list[PartitionLog] = self.world.cluster.topics[topic.name].logs
        return found

    def message(self, topic: Topic, kind: Kind = Kind.ROW, *, event_ms: int | None = None, **options: Any) -> Message:
        """Returns a message of a topic that is not sent yet.

        Args:
            kind: whether it is to become a row, a tombstone, a bad message and so on.
            event_ms: the time of the event, by default around the present.
            options: `version`, a schema version and its id; `time`, the value of the time field if it is not
                `event_ms`; `value`, a function that makes a malformed body from the message's number.
        """
        n = self.story.number()
        chance = topic.chance
        record, schema_id = options.get("version") or topic.versions[-1]
        arrival_ms = self.true_ms - chance.randrange(HOUR_MS)
        if event_ms is None or record.time == "record":
            event_ms = arrival_ms
        message = Message(n, topic.name, topic.log, kind, event_ms, arrival_ms, b"k%d" % n, None, None, 0, 0)
        if kind is Kind.TOMBSTONE:
            return message
        if "value" in options:
            message.value, message.event_ms = options["value"](n), arrival_ms
            return message
        message.record, message.schema_id = record, schema_id
        message.time = options.get("time", event_ms * record.units_per_ms)
        message.value = self.encode(record, schema_id, record.value(n, message.time))
        return message

    def send(self, topic: Topic, messages: Sequence[Message], partition: int | None = None) -> None:
        by_partition: dict[int, list[Message]] = {}
        logs = self.logs(topic)
        for message in messages:
            # Partitions differ as much as topics.
            number = min(topic.chance.randrange(len(logs)), topic.chance.randrange(len(logs)))
            by_partition.setdefault(number if partition is None else partition, []).append(message)
        for number, ones in by_partition.items():
            offsets = logs[number].append([one.sent for one in ones], codec=topic.chance.choice((0, 0, 1)))
            self.story.sent(ones, number, offsets, self.true_ms)

    def produce(self, topic: Topic, number: int) -> None:
        """Sends a batch of messages as on a usual day: some are late, some in the future, some of an older version,
        some malformed."""
        chance = topic.chance
        messages = []
        for _ in range(number):
            draw = chance.random()
            if draw < topic.bad_share:
                messages.append(self.message(topic, Kind.BAD, value=lambda n: b"no Avro #%d#" % n))
            elif draw < 0.03:
                messages.append(self.message(topic, Kind.TOMBSTONE))
            else:
                event_ms = self.true_ms - chance.randrange(2 * HOUR_MS)
                if draw < 0.05:
                    event_ms -= chance.randrange(LATE_DAYS_MAX) * DAY_MS
                elif draw < 0.055:
                    event_ms += chance.randrange(3) * DAY_MS
                version = chance.choice(topic.versions[-3:]) if draw > 0.9 else topic.versions[-1]
                messages.append(self.message(topic, event_ms=event_ms, version=version))
        self.send(topic, messages)

    # Reports.

    def record_event(self, topic: Topic | None, line: str) -> None:
        self.story.record_event(topic.name if topic else "", self.day, line)

    def policy(self, topic: Topic, **changes: Any) -> None:
        self.world.policies[topic.name] = dataclasses.replace(self.world.policies[topic.name], **changes)

    def until(self, done: Callable[[], object], condition: str, topic: str = "") -> Iterator[None]:
        """Yields for each load until `done` returns true. Fails after `RUNS_UNTIL_REPORT_MAX` loads without an injected
        fault.

        Args:
            condition: the condition, for the error message.
            topic: the topic concerned, for the error message.
        """
        runs = 0
        while True:
            yield
            if done():
                return
            runs += not self.is_rough
            if runs > RUNS_UNTIL_REPORT_MAX:
                raise self.story.failed(topic, f"{condition}, and no load of {runs} did it; the last: {self.report}")

    def until_reported(self, topic: Topic, pattern: str, reason: str) -> Iterator[None]:
        """Yields for each load until one without an injected fault reports a sentence that matches the pattern.

        Args:
            reason: the reason why the sentence is expected, for the error message.
        """
        expectation = self.story.expect(topic.name, pattern, reason)

        def is_reported() -> bool:
            reported, expectation.reported = expectation.reported, 0
            return bool(reported) and not self.is_rough

        yield from self.until(is_reported, f"{reason}, so /{pattern}/ is to be reported", topic.name)
        self.story.over(expectation)

    def may_report(self, topic: Topic, pattern: str, reason: str) -> Expectation:
        return self.story.expect(topic.name, pattern, reason)

    def once_reported(self, topic: Topic, pattern: str, reason: str) -> Iterator[None]:
        """Yields for each load until the present messages of the topic are committed. By then a load must have reported
        a sentence that matches the pattern, unless a load had an injected fault.

        Args:
            reason: the reason why the sentence is expected, for the error message.
        """
        expectation = self.story.expect(topic.name, pattern, reason)
        is_loaded, was_disturbed = self._is_loaded(topic), False

        def is_done() -> bool:
            nonlocal was_disturbed
            was_disturbed = was_disturbed or self.is_rough
            return bool(expectation.reported) or is_loaded()

        yield from self.until(is_done, f"{reason}, so /{pattern}/ is to be reported", topic.name)
        if not expectation.reported and not was_disturbed:
            raise self.story.failed(topic.name, f"{reason}, and /{pattern}/ was not reported: {self.report}")
        yield from self.loaded(topic)
        self.story.over(expectation)

    def _is_loaded(self, topic: Topic) -> Callable[[], bool]:
        """Returns a function that returns whether all messages are committed that are now below the last stable
        offset."""
        unread = self.story.unread[topic.name]
        ends = [log.stable_end for log in self.logs(topic)] if topic.name in self.world.cluster.topics else []
        messages = [self.story.messages[number] for number in unread]
        awaited = {one.n for one in messages if one.offset < ends[one.partition]}
        return lambda: awaited.isdisjoint(unread)

    def loaded(self, topic: Topic) -> Iterator[None]:
        """Yields for each load until all messages are committed that were below the last stable offset at the call."""
        is_loaded = self._is_loaded(topic)
        if not is_loaded():
            yield from self.until(is_loaded, f"{topic.name} is to be loaded", topic.name)

    # The days.

    def live(self, days: int, happenings: Sequence[Happening], *, every: int = 30) -> None:
        """Simulates the days. Checks everything every `every` days and at the end.

        Args:
            happenings: the events and their days.
        """
        due = sorted(happenings, key=lambda one: one.day)
        for self.day in range(days):
            self._create_topics()
            due = self._begin(due)
            for topic in self.topics.values():
                if topic.log and topic.versions and not topic.is_quiet and topic.chance.random() < topic.share:
                    self.produce(topic, 1 + topic.chance.randrange(2 * topic.rate))
            self.load()
            if self.day % every == every - 1:
                self.look_at_all()
        while self._running or due:  # events in progress are completed
            self.day += 1
            due = self._begin(due)
            self.load()
            if self.day > days + 60:
                raise self.story.failed("", f"not at an end: {[one.name for one, _ in self._running]}, {due}")
        self.load()
        self.look_at_all()
        for name in self.topics:
            self.lost += self.judge.explained(name)

    def _create_topics(self) -> None:
        for topic in self.topics.values():
            if topic.born <= self.day and not topic.log and not self.is_frozen:
                self.world.policies[topic.name] = policy_of(topic)
                self.create(topic)
                self.register(topic)
                self.record_event(topic, f"made with {topic.partitions} partitions: {topic.record.text()}")

    def _begin(self, due: list[Happening]) -> list[Happening]:
        """Starts the events that are due, and returns the others. An event of a topic with a running event is
        postponed."""
        later = []
        for one in due:
            topic = self.topics.get(one.topic)
            if one.day > self.day or (topic is not None and (topic.is_busy or not topic.log)):
                later.append(one)
                continue
            if topic is None and (self.rough_reasons or self.fault or self.is_alone):
                later.append(one)  # one event for all topics at a time
                continue
            if topic is not None:
                topic.is_busy = True
            self.record_event(topic, one.name)
            script = one.script(self, topic)  # type: ignore[arg-type]
            self._running.append((one, script))
            self._step(one, script)
        return later

    def _step(self, one: Happening, script: Iterator[None]) -> None:
        try:
            next(script)
        except StopIteration:
            self._running.remove((one, script))
            if one.topic:
                self.topics[one.topic].is_busy = False
            self.event_counts[one.name] += 1
            self.record_event(self.topics.get(one.topic), f"{one.name} is over")

    def load(self) -> None:
        """Runs one load as a new process would, and checks its results. Then continues the running events."""
        self.world.clock_ms = self.true_ms + 2 * HOUR_MS + self.clock_shift_ms
        ports, _ = self.world.drivers()
        fault, self.fault = self.fault, None
        self.is_rough = bool(self.rough_reasons) or fault is not None
        self.report, self.error = None, None
        try:
            if fault is None:
                self.report = run_load(ports, self.world.settings)
            else:
                with fault.injected():
                    self.report = run_load(ports, self.world.settings)
        except (Killed, *REPORTED_ERRORS) as error:
            self.error = error
            if not self.is_rough:
                raise self.story.failed("", f"the load ended with {type(error).__name__}: {error}") from error
        if fault is not None:
            self._calls = max(50, len(fault.calls))
        self.after(self.report)
        self._between(self)
        for one, script in list(self._running):
            self._step(one, script)

    def random_call(self) -> int:
        """Returns the number of an external call that a load probably makes, at which a fault can be injected."""
        return self.chance.randrange(self._calls)

    def after(self, report: RunReport | RewriteReport | None = None) -> None:
        """Checks what a load or rewrite has done: its commits, the sentences in its report, and the rows of the changed
        topics. Called once per report."""
        state = self.log.read_state()
        logs = {topic.name: topic.log for topic in self.topics.values()}
        self.judge.bad.clear()
        for commit_number in range(self._slot + 1, state.commit_number + 1):
            self.judge.committed(self.log.commit(commit_number), logs)
        self._slot = state.commit_number
        self._check_report(report)
        if self.is_rough:
            return
        for topic in [*self.judge.time_partitions]:
            self.reader.look(topic, state.topics[topic].table, self.judge.time_partitions[topic])
            self.judge.seen(topic, self.reader.live, self.reader.quarantined)

    def _check_report(self, report: RunReport | RewriteReport | None) -> None:
        if report is None:
            return
        reported = [(topic, sentence) for topic, sentences in report.problems.items() for sentence in sentences]
        reported += [(note.partition(": ")[0], note) for note in report.notes]
        if isinstance(report, RunReport):
            reported += [(topic, f"waiting: {reason}") for topic, reason in report.waiting.items()]
            reported += [("", f"outage: {report.registry_outage}")] if report.registry_outage else []
            reported += [("", f"conflict: {report.conflict}")] if report.conflict else []
        for topic, sentence in reported:
            is_known = self.story.is_expected(topic, sentence) or self.judge.states_bad_messages(topic, sentence)
            if not is_known and not self.is_rough:
                raise self.story.failed(topic, f"no event caused this: {sentence}")

    def look_at_all(self) -> None:
        """Reads all tables. Checks that every message is where it must be, and that the counts of all tiers agree."""
        if self.is_rough or self.rough_reasons:
            return
        state = self.log.read_state()
        for topic, known in state.topics.items():
            self.reader.look(topic, known.table)
            self.judge.check_all(topic, self.reader.live, self.reader.quarantined)
        with AuditStore(self.world.audit_path) as store:
            store.add_rows(self.story.producer_rows[self._audited :])
            self._audited = len(self.story.producer_rows)
            self.event_counts.update(
                {
                    f"audit {verdict}": number
                    for verdict, number in self.judge.audited(store, state.topics, self.true_ms + DAY_MS * 30).items()
                }
            )
        self.measure()

    def audit_is_lost(self) -> None:
        for path in self.world.audit_path.parent.glob(f"{self.world.audit_path.name}*"):
            path.unlink()
        self._audited = 0

    def measure(self) -> None:
        state = self.log.read_state()
        files = Counter(
            path.relative_to(self.world.headrace).parts[0] for path in self.world.headrace.rglob("*") if path.is_file()
        )
        texts = sum(len(one.load_schema.text) + len(one.load_schema.fold) for one in state.topics.values())
        partitions = sum(len(one.partitions) for one in state.topics.values())
        size = len(write_document(state))
        run_ids = len(state.staged_runs) + len(state.voided) + len(state.rewrites)
        self.sizes.append(
            Size(
                self.day,
                size,
                size - texts,
                len(state.topics),
                partitions,
                state.commit_number,
                run_ids,
                len(self.reader.days),
                files,
            )
        )


def policy_of(topic: Topic) -> Any:
    chance = topic.chance
    return dataclasses.replace(
        POLICY,
        partition_by=chance.choice(("hour", "day", "day")),
        kafka_column=chance.choice(("position", "position", "full")),
        codec=chance.choice(("snappy", "deflate", "null")),
        quarantine_ratio_max=0.2,
        future_ms_max=chance.choice((None, DAY_MS)),
        time_fields=("header.time", "timestamp"),
    )
