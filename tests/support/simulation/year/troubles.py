"""Events of all topics at once, and changes of the warehouse by operators. Each function is a generator, as in
`scripts`."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator

from headrace.hive_ddl.errors import MetastoreUnavailable
from headrace.kafka_wire.errors import KafkaError
from headrace.loader.rewrite.choose import is_expired
from headrace.loader.rewrite.run import CompactSettings, accept_missing, compact, expire
from headrace.loader.run import run_load
from headrace.loader.work_unit import FileKind
from support.simulation.faults import Fault, Faults
from support.simulation.year.life import Life, Topic, policy_of
from support.simulation.year.schemas import first_version
from support.simulation.year.world import HOUR_MS

RETENTION_DAYS = 100
HINTS = ("head.json", "cursor", "index", "complete.json", "checkpoint", "lease.json")


def _send_to_some(life: Life) -> list[Topic]:
    """Sends messages to a few topics that have no event at present, and returns these topics."""
    free = [topic for topic in life.topics.values() if topic.versions and not topic.is_busy and not topic.is_quiet]
    for topic in free[:4]:
        life.send(topic, [life.message(topic) for _ in range(3)])
    return free[:4]


def _rough(life: Life, reason: str, days: int) -> Iterator[None]:
    """For some days, marks the loads as disturbed for this reason, so that they may report problems."""
    life.rough_reasons.add(reason)
    for _ in range(days):
        _send_to_some(life)
        yield
    life.rough_reasons.discard(reason)


def registry_down(life: Life, _: Topic) -> Iterator[None]:
    """Makes the registry unavailable for two loads. Topics without new schemas are loaded meanwhile."""
    yield from life.may_register()
    life.is_frozen = True
    yield
    while life.is_rough:
        yield
    life.world.registry.is_down = True
    expected = life.story.expect("", "outage: ", "the registry is down")
    topics = _send_to_some(life)
    for _ in range(2):
        yield
    if not expected.reported:
        raise life.story.failed("", "the registry was down, which was not reported")
    for topic in topics:
        yield from life.loaded(topic)
    life.world.registry.is_down = life.is_frozen = False
    life.story.over(expected)


def no_schema_yet(life: Life, _: Topic) -> Iterator[None]:
    """Creates a topic before its schema is registered. The loader must wait for the schema."""
    number = len(life.topics)
    own = random.Random(f"{life.seed}/{number}")
    topic = Topic(f"early{number}", own, 4, 0.5, 2, 0, first_version(f"Early{number}", "timestamp", own))
    life.topics[topic.name] = topic
    life.world.policies[topic.name] = policy_of(topic)
    allowed = life.may_report(topic, "waiting: ", "it has no schema, and the registry may be down too")
    life.create(topic)
    yield from life.until_reported(topic, f"waiting: no subject {topic.subject} is registered", "it has no schema")
    yield from life.may_register()
    life.register(topic)
    life.send(topic, [life.message(topic) for _ in range(5)])
    yield from life.loaded(topic)
    life.story.over(allowed)


def registry_put_back(life: Life, _: Topic) -> Iterator[None]:
    """Restores the registry from an older copy, in which its newest ids are assigned to other schemas. Then restores
    the newer copy."""
    registry = life.world.registry
    yield from life.may_register()
    while not (free := [one for one in life.topics.values() if one.versions and not one.is_busy]):
        yield
    topic = life.chance.choice(free)
    topic.is_busy = life.is_frozen = True
    older = registry.copy()
    life.evolve(topic)
    life.send(topic, [life.message(topic) for _ in range(3)])
    topic.is_quiet = True
    yield from life.loaded(topic)
    newer = registry.copy()
    life.record_event(topic, "the registry is restored from an older copy, and its newest id is assigned again")
    registry.restore(older, "registry-2")
    registry.register("another-value", '{"type":"record","name":"Another","fields":[{"name":"z","type":"long"}]}')
    life.send(topic, [life.message(topic) for _ in range(3)])
    allowed = life.may_report(topic, "schema", "the registry has another schema under its id")
    yield from life.until_reported(
        topic, f"schema {topic.versions[-1][1]}", "the registry has another schema under an id"
    )
    registry.restore(newer, "registry-1")
    life.record_event(topic, "the newer copy is found")
    yield from life.loaded(topic)
    life.story.over(allowed)
    topic.is_quiet = topic.is_busy = life.is_frozen = False


def broker_down(life: Life, _: Topic) -> Iterator[None]:
    life.world.cluster.down = {life.chance.randrange(3)}
    yield from _rough(life, "a broker is down", 2)
    reported = [one for sentences in life.report.problems.values() for one in sentences] if life.report else []
    if not any("connection refused" in one for one in reported):
        raise life.story.failed("", f"a broker was down, which was not reported: {reported}")
    life.world.cluster.down = set()
    yield


def cluster_down(life: Life, _: Topic) -> Iterator[None]:
    life.world.cluster.down = {0, 1, 2}
    yield from _rough(life, "all brokers are down", 1)
    if not isinstance(life.error, KafkaError):
        raise life.story.failed("", f"no broker was up, and the load ended with {life.error}")
    life.world.cluster.down = set()
    yield


def metastore_down(life: Life, _: Topic) -> Iterator[None]:
    """Makes the metastore unavailable for some loads. Messages are committed meanwhile, and must be visible to queries
    when it is available again."""
    if not hasattr(life.world.hive, "failure"):
        return
    life.world.hive.failure = MetastoreUnavailable("thrift://metastore", "connection refused")
    yield from _rough(life, "the metastore is down", 2)
    if life.report is None or not life.report.problems:
        raise life.story.failed("", "the metastore was down, which was not reported")
    life.world.hive.failure = None
    yield


def audit_lost(life: Life, _: Topic) -> Iterator[None]:
    """Deletes the audit database. It is rebuilt, since the commit log and the audit topic have all counts."""
    life.audit_is_lost()
    yield


def clock_back(life: Life, _: Topic) -> Iterator[None]:
    life.clock_shift_ms = -30 * HOUR_MS
    yield
    life.clock_shift_ms = 3 * HOUR_MS
    yield
    life.clock_shift_ms = 0
    yield


def dies(life: Life, _: Topic) -> Iterator[None]:
    """Injects a fault at a random call of the next load: the driver dies, or the call fails, hangs or loses its
    response."""
    _send_to_some(life)
    fault = life.chance.choice(list(Fault))
    life.fault = Faults(life.random_call(), fault)
    life.record_event(None, f"at call {life.fault.at}: {fault}")
    yield


def two_drivers(life: Life, _: Topic) -> Iterator[None]:
    """Runs another load completely before a random call of the next load."""
    _send_to_some(life)
    life.fault = faults = Faults(life.random_call())
    reports = []

    def another() -> None:
        reports.append(run_load(life.world.drivers()[0], life.world.settings))

    faults.meanwhile = another
    life.record_event(None, f"another load at call {faults.at}")
    yield


def hints_lost(life: Life, _: Topic) -> Iterator[None]:
    """Deletes all files that can be rebuilt from the commit log."""
    for name in HINTS:
        path = life.world.headrace / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    # Appliers that begin again check every file, including those that an operator deleted.
    yield


def compaction(life: Life, _: Topic) -> Iterator[None]:
    _, rewrites = life.world.drivers()
    state = life.log.read_state()
    codec = life.world.policies
    settings = CompactSettings(lambda topic: HOUR_MS, 1 << 20, 1 << 20, lambda topic: codec[topic].codec)
    names = sorted(life.chance.sample(sorted(state.topics), min(6, len(state.topics))))
    report = compact(rewrites, names, settings, is_dry=False)
    life.record_event(None, f"compacted {names}: {len(report.time_partitions)} time partitions")
    life.event_counts["time partitions compacted"] += len(report.time_partitions)
    life.after(report)
    yield


def expired(life: Life, _: Topic) -> Iterator[None]:
    """Deletes the old days of some topics with `headrace expire`."""
    _, rewrites = life.world.drivers()
    names = [topic.name for topic in life.topics.values() if topic.name in life.log.read_state().topics][::2]
    _look_at(life, names)
    report = expire(rewrites, dict.fromkeys(names, RETENTION_DAYS), is_dry=False)
    for name in names:
        _retire(
            life,
            name,
            lambda time_partition: is_expired(time_partition.partition("/")[0], RETENTION_DAYS, life.world.clock_ms),
            "kept",
        )
    life.event_counts["time partitions retired"] += len(report.time_partitions)
    life.after(report)
    yield


def deleted_by_hand(life: Life, _: Topic) -> Iterator[None]:
    """Deletes the files of an old day, as an operator might by mistake. The next load reports them, and the operator
    accepts the loss."""
    state = life.log.read_state()
    found = [
        (topic, values)
        for topic in life.topics.values()
        if not topic.is_busy and topic.name in state.topics
        for values, files in sorted(life.reader.time_partitions["headrace", topic.name].items())[:1]
        if files
    ]
    if not found:
        return
    topic, values = life.chance.choice(found)
    time_partition = "/".join(f"{name}={value}" for name, value in zip(("dt", "hr"), values, strict=False))
    _look_at(life, [topic.name])
    topic.is_busy = life.is_alone = True
    for path in life.reader.time_partitions["headrace", topic.name][values]:
        path.unlink()
    _retire(life, topic.name, lambda one: one == time_partition, "removed by hand", FileKind.DATA)
    life.record_event(topic, f"{time_partition} is removed by hand")
    allowed = life.may_report(topic, r"files? (of .* )?(is|are) missing", "removed by hand")
    yield from life.until_reported(topic, f"missing: .*{time_partition}", "removed by hand")
    while life.is_rough:
        yield
    report = accept_missing(life.world.drivers()[1], topic.name, [FileKind.DATA], time_partition, is_dry=False)
    if not report.commit_number:
        raise life.story.failed(topic.name, f"{time_partition} was not forgotten: {report}")
    life.record_event(topic, f"forgot {time_partition}")
    life.after(report)
    (life.world.headrace / "cursor" / "files.json").unlink(missing_ok=True)
    life.story.over(allowed)
    yield
    topic.is_busy = life.is_alone = False


def _look_at(life: Life, names: list[str]) -> None:
    """Reads all partitions of the topics, so that the reader knows their rows at present."""
    tables = life.log.read_state().topics
    for name in names:
        life.reader.look(name, tables[name].table)


def _retire(life: Life, name: str, is_removed, reason: str, *kinds: FileKind) -> None:  # type: ignore[no-untyped-def]
    """Notes that the messages in some time partitions no longer have rows.

    Args:
        is_removed: returns whether a time partition was removed.
        reason: the reason to note.
        kinds: the kinds of files concerned, by default all.
    """
    for kind in kinds or tuple(FileKind):
        database = "headrace_quarantine" if kind is FileKind.QUARANTINE else "headrace"
        for values, files in life.reader.time_partitions[database, name].items():
            time_partition = "/".join(f"{one}={value}" for one, value in zip(("dt", "hr"), values, strict=False))
            if is_removed(time_partition):
                for held in files.values():
                    for number in held.numbers:
                        life.story.messages[number].retired = reason
