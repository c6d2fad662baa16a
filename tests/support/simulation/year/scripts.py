"""Events of a topic. Each function is a generator that causes an event and yields for each load, until loads have
reported all expected sentences.

The functions also act as the operator. If the load reports a diverged log, they permit the loader to continue; if it
reports a corrupt batch, they skip it or let another replica become leader.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.offsets.choose import LogBounds, commit_of, skip
from support.simulation.year.broker import PartitionLog
from support.simulation.year.life import Life, Topic
from support.simulation.year.story import Kind, Loss, Message
from support.simulation.year.world import DAY_MS

RECREATED = "was re-created"
ALSO_REPORTED = "diverged at offset|the new topic's offsets begin again"
NANOS = 1_000_000


def _some_partition(life: Life, topic: Topic) -> tuple[int, PartitionLog]:
    """Returns the number and log of a partition of the topic, the one with the longest log."""
    logs = life.logs(topic)
    number = max(range(len(logs)), key=lambda one: logs[one].end)
    return number, logs[number]


def _next_offset(life: Life, topic: Topic, partition: int) -> int:
    known = life.log.read_state().topics.get(topic.name)
    found = known.partitions.get(partition) if known else None
    return found.next_offset if found else 0


def _filled(life: Life, topic: Topic, number: int = 20) -> Iterator[None]:
    """Sends messages to partition 0, pauses the producers, and waits until everything is loaded."""
    life.send(topic, [life.message(topic) for _ in range(number)], 0)
    topic.is_quiet = True
    yield from life.loaded(topic)


def _continued_after_report(life: Life, topic: Topic, problem: str, note: str, reason: str) -> Iterator[None]:
    """Waits until the loader reports the problem and holds the topic back. Then permits it to continue with the present
    log, and waits for the note about that.

    Args:
        problem: pattern of the sentence about the problem.
        note: pattern of the sentence about the continuation.
        reason: the reason, for error messages.
    """
    allowed = [life.may_report(topic, one, reason) for one in (problem, note, ALSO_REPORTED)]
    yield from life.until_reported(topic, problem, reason)
    life.policy(topic, on_data_loss="skip")
    life.record_event(topic, "on_data_loss = skip")
    yield from life.once_reported(topic, note, reason)
    life.policy(topic, on_data_loss="fail")
    topic.is_quiet = False
    for one in allowed:
        life.story.over(one)


def evolves(life: Life, topic: Topic) -> Iterator[None]:
    yield from life.may_register()
    life.evolve(topic)
    life.send(topic, [life.message(topic) for _ in range(3)])
    yield from life.loaded(topic)


def evolves_unseen(life: Life, topic: Topic) -> Iterator[None]:
    """Registers two versions between two loads. Messages of the first one arrive after messages of the second one."""
    yield from life.may_register()
    life.evolve(topic)
    life.evolve(topic)
    messages = [life.message(topic, version=topic.versions[-1 - n % 2]) for n in range(4)]
    life.send(topic, messages, 0)
    yield from life.loaded(topic)


def bad_day(life: Life, topic: Topic) -> Iterator[None]:
    """Sends more bad messages of each kind than `quarantine_ratio_max` permits without a note, but too few to hold the
    topic back."""
    topic.is_quiet = True
    yield from life.loaded(topic)
    yield from life.may_register()
    unknown = life.world.registry.reserve_ids(2)
    schema_id = topic.versions[-1][1]
    values = (
        lambda n: b"\x01 garbage #%d#" % n,
        lambda n: b"\x00#%d#" % n,
        lambda n: b"\x00" + unknown[0].to_bytes(4, "big") + b"#%d#" % n,
        lambda n: b"\x00" + unknown[1].to_bytes(4, "big") + b"#%d#" % n,
        lambda n: b"\x00" + schema_id.to_bytes(4, "big") + b"\xff" * 12 + b"#%d#" % n,
        lambda n: b"",
    )
    messages = [life.message(topic, Kind.BAD, value=value) for value in values[:-1] for _ in range(3)]
    messages += [life.message(topic) for _ in range(5)]
    topic.chance.shuffle(messages)
    life.send(topic, messages)
    yield from life.once_reported(topic, "cannot be loaded, more than loader.quarantine_ratio_max", "bad messages")
    topic.is_quiet = False


def bad_flood(life: Life, topic: Topic) -> Iterator[None]:
    """Sends so many bad messages that nothing of the topic is loaded until the limit is raised."""
    topic.is_quiet = True
    yield from life.loaded(topic)
    messages = [life.message(topic, Kind.BAD, value=lambda n: b"flood #%d#" % n) for _ in range(120)]
    life.send(topic, [*messages, *(life.message(topic) for _ in range(10))])
    reason = "a flood of bad messages"
    yield from life.until_reported(topic, "so nothing of this topic was loaded", reason)
    life.policy(topic, quarantine_ratio_max=1.0)
    yield from life.loaded(topic)
    life.policy(topic, quarantine_ratio_max=0.2)
    topic.is_quiet = False


def wrong_unit(life: Life, topic: Topic) -> Iterator[None]:
    """Sends nanoseconds or seconds in place of milliseconds."""
    topic.is_quiet = True
    yield from life.loaded(topic)
    messages = []
    is_nanos = topic.chance.random() < 0.5
    for _ in range(6):
        message = life.message(topic)
        if message.record is not None and message.record.time in ("timestamp", "property", "header"):
            time = message.event_ms * NANOS if is_nanos else message.event_ms // 1000
            message = life.message(topic, event_ms=time, time=time)
        messages.append(message)
    life.send(topic, messages)
    if topic.record.time in ("timestamp", "property", "header"):
        pattern = "have a time before 1970 or after 9999" if is_nanos else "seems to be in another unit"
        yield from life.once_reported(topic, pattern, "a wrong unit of time")
    topic.is_quiet = False


def aborted(life: Life, topic: Topic) -> Iterator[None]:
    """Sends messages in a transaction that is aborted, and in one that is committed."""
    number, log = _some_partition(life, topic)
    if log.open_from is None:
        for commits in (False, True):
            kind = Kind.ROW if commits else Kind.ABORTED
            messages = [life.message(topic, kind) for _ in range(4)]
            offsets = log.open_transaction([one.sent for one in messages], 7)
            life.story.sent(messages, number, offsets, life.true_ms)
            log.end_transaction(7, commits=commits)
    yield from life.loaded(topic)


def hanging(life: Life, topic: Topic) -> Iterator[None]:
    """Sends messages in a transaction that stays open for days."""
    number, log = _some_partition(life, topic)
    allowed = life.may_report(topic, "an open transaction holds", "a transaction hangs")
    commits = topic.chance.random() < 0.5
    messages = [life.message(topic, Kind.ROW if commits else Kind.ABORTED) for _ in range(3)]
    offsets = log.open_transaction([one.sent for one in messages], 8)
    life.story.sent(messages, number, offsets, life.true_ms)
    life.send(topic, [life.message(topic) for _ in range(3)], number)
    yield from life.until_reported(topic, "an open transaction holds", "a transaction hangs")
    yield
    log.end_transaction(8, commits=commits)
    yield from life.loaded(topic)
    life.story.over(allowed)


def retention(life: Life, topic: Topic) -> Iterator[None]:
    """The brokers delete messages that are loaded. Nothing needs to be reported."""
    for number, log in enumerate(life.logs(topic)):
        to = min(_next_offset(life, topic, number), log.stable_end)
        life.story.removed(topic.name, topic.log, number, log.remove_before(to), Loss.REMOVED)
    yield


def retention_unread(life: Life, topic: Topic) -> Iterator[None]:
    """The brokers delete messages, of which some have not been read yet."""
    yield from _filled(life, topic)
    log = life.logs(topic)[0]
    life.send(topic, [life.message(topic) for _ in range(9)], 0)
    to = log.end - topic.chance.randrange(1, 5)
    removed = life.story.removed(topic.name, topic.log, 0, log.remove_before(to), Loss.REMOVED)
    reason = f"retention took {removed} unread messages up to {to}"
    life.record_event(topic, reason)
    problem = "were removed before they were read; loader.on_data_loss=skip"
    yield from _continued_after_report(
        life, topic, problem, "were removed before they were read; recorded as a gap", reason
    )


def truncated(life: Life, topic: Topic) -> Iterator[None]:
    """Simulates an unclean election that loses loaded messages, after which other messages get their offsets. For
    example, the log end goes from 100 back to 80, and then to 150."""
    yield from _filled(life, topic, 40)
    log = life.logs(topic)[0]
    end = log.end
    removed = log.cut_back(log.batches[-1].base)
    life.story.removed(topic.name, topic.log, 0, removed, Loss.REPLACED)
    grows = topic.chance.choice((len(removed) + 7, 3))
    life.send(topic, [life.message(topic) for _ in range(grows)], 0)
    reason = f"cut back from {end} to {end - len(removed)}, and grown to {log.end}"
    life.record_event(topic, reason)
    problem = r"were loaded and are no longer in the log|and offsets up to \d+ were loaded"
    yield from _continued_after_report(life, topic, problem, "resumed at", reason)


def truncated_unread(life: Life, topic: Topic) -> Iterator[None]:
    """Simulates an unclean election that loses only messages which were not read yet. The loader cannot detect that."""
    yield from _filled(life, topic)
    log = life.logs(topic)[0]
    life.send(topic, [life.message(topic) for _ in range(8)], 0)
    life.story.removed(topic.name, topic.log, 0, log.cut_back(_next_offset(life, topic, 0)), Loss.REPLACED)
    life.send(topic, [life.message(topic) for _ in range(topic.chance.choice((2, 12)))], 0)
    yield from life.loaded(topic)
    topic.is_quiet = False


def new_leaders(life: Life, topic: Topic) -> Iterator[None]:
    for log in life.logs(topic):
        log.new_leader()
    life.send(topic, [life.message(topic) for _ in range(3)])
    yield from life.loaded(topic)


def recreated(life: Life, topic: Topic) -> Iterator[None]:
    """Deletes the topic with unread messages, and creates it again."""
    yield from _filled(life, topic)
    life.send(topic, [life.message(topic) for _ in range(4)])
    _delete(life, topic)
    yield
    life.create(topic)
    life.send(topic, [life.message(topic) for _ in range(6)])
    problem = f"{RECREATED}.*set loader.on_data_loss=skip to load the new topic"
    yield from _continued_after_report(
        life, topic, problem, f"{RECREATED}.*reading the new topic from its start", "made anew"
    )


def _delete(life: Life, topic: Topic) -> None:
    for number, log in enumerate(life.logs(topic)):
        life.story.removed(topic.name, topic.log, number, log.offsets(), Loss.RECREATED)
    del life.world.cluster.topics[topic.name]
    topic.is_quiet = True


def recreated_without_ids(life: Life, topic: Topic) -> Iterator[None]:
    """Deletes the topic and creates it again while the brokers report no topic ids. Its leader epochs start again."""
    for log in life.logs(topic):
        log.new_leader()
    yield from _filled(life, topic)
    life.world.cluster.topics[topic.name].reports_topic_id = False
    yield
    _delete(life, topic)
    life.create(topic, reports_topic_id=False)
    life.send(topic, [life.message(topic) for _ in range(30)])
    life.send(topic, [life.message(topic) for _ in range(3)], 0)
    problem = r"were loaded and are no longer in the log|and offsets up to \d+ were loaded"
    yield from _continued_after_report(
        life, topic, problem, "resumed at offset 0", "re-created while no ids are reported"
    )
    topic.is_quiet = True
    life.record_event(topic, "ids are told again")
    life.world.cluster.topics[topic.name].reports_topic_id = True
    life.send(topic, [life.message(topic) for _ in range(3)])
    yield from life.loaded(topic)
    topic.is_quiet = False


def ids_appear(life: Life, topic: Topic) -> Iterator[None]:
    """Replaces brokers that report no topic ids by brokers that do. The topic remains the same for the loader."""
    yield from _filled(life, topic)
    broker_topic = life.world.cluster.topics[topic.name]
    broker_topic.reports_topic_id = not broker_topic.reports_topic_id
    life.send(topic, [life.message(topic) for _ in range(3)])
    yield from life.loaded(topic)
    broker_topic.reports_topic_id = True
    life.send(topic, [life.message(topic) for _ in range(3)])
    yield from life.loaded(topic)
    topic.is_quiet = False


def partitions_added(life: Life, topic: Topic) -> Iterator[None]:
    logs = life.logs(topic)
    before = len(logs)
    logs += [PartitionLog(number % 3) for number in range(before, before + topic.chance.randint(1, 4))]
    topic.partitions = len(logs)
    life.send(topic, [life.message(topic) for _ in range(3)], before)
    yield from life.loaded(topic)


def compacted_log(life: Life, topic: Topic) -> Iterator[None]:
    """The brokers compact a log: some of its messages are removed, read or not."""
    number, log = _some_partition(life, topic)
    life.send(topic, [life.message(topic) for _ in range(12)], number)
    removed = {at for at in log.offsets()[:-1] if topic.chance.random() < 0.4}
    log.compact(removed)
    life.story.removed(topic.name, topic.log, number, removed, Loss.REMOVED)
    yield from life.loaded(topic)


def emptied_log(life: Life, topic: Topic) -> Iterator[None]:
    """The brokers compact a log so that no message remains in it. Its end stays the same."""
    number, log = _some_partition(life, topic)
    if log.open_from is None:
        life.send(topic, [life.message(topic) for _ in range(6)], number)
        removed = log.offsets()
        log.batches = []
        life.story.removed(topic.name, topic.log, number, removed, Loss.REMOVED)
    yield from life.loaded(topic)


def corrupt(life: Life, topic: Topic) -> Iterator[None]:
    """Flips a bit in a batch, under one of the policies for corrupt batches."""
    policy = topic.chance.choice(("fail", "fail", "quarantine", "skip"))
    life.policy(topic, corrupt_batches=policy)
    yield from _filled(life, topic)
    log = life.logs(topic)[0]
    life.send(topic, [life.message(topic) for _ in range(5)], 0)
    messages = [life.message(topic) for _ in range(7)]
    life.send(topic, messages, 0)
    life.send(topic, [life.message(topic) for _ in range(5)], 0)
    hit = log.corrupt(1)
    life.record_event(topic, f"a bit flips in [{hit.base}, {hit.next_offset}), and corrupt_batches = {policy}")
    if policy == "fail":
        yield from _stopped(life, topic, hit.base, hit.next_offset, is_repaired=topic.chance.random() < 0.5)
    else:
        if policy == "quarantine":
            quarantined = life.message(topic, Kind.BAD, value=lambda n: hit.data)
            _record_quarantined_batch(life, quarantined, hit.base)
        yield from life.once_reported(topic, "corrupt_batches skipped", "a corrupt batch")
    life.policy(topic, corrupt_batches="fail")
    topic.is_quiet = False


def _record_quarantined_batch(life: Life, quarantined: Message, offset: int) -> None:
    """Adds the quarantine row of a whole corrupt batch to the story. No producer sent it as a message, and no tier
    counts it."""
    quarantined.partition, quarantined.offset, quarantined.event_ms = 0, offset, -2
    life.story.messages[quarantined.n] = quarantined
    life.story.by_topic[quarantined.topic].append(quarantined)
    life.judge.corrupt[quarantined.topic, quarantined.log, 0, offset] = quarantined.n


def _stopped(life: Life, topic: Topic, offset: int, next_offset: int, *, is_repaired: bool) -> Iterator[None]:
    """Waits until the loader stops the partition before a corrupt batch. Then another replica becomes leader, or an
    operator skips the batch.

    Args:
        is_repaired: whether another replica becomes leader.
    """
    allowed = life.may_report(topic, "headrace offsets skip", "a corrupt batch stops its partition")
    yield from life.until_reported(topic, f"headrace offsets skip {topic.name} 0 {offset}", "a corrupt batch stops")
    if is_repaired:
        life.record_event(topic, "another replica leads")
        life.logs(topic)[0].repair_segment()
    else:
        life.record_event(topic, f"offsets skip {offset} --to {next_offset}")
        _skip(life, topic, offset, next_offset)
    yield from life.loaded(topic)
    life.story.over(allowed)


def _skip(life: Life, topic: Topic, offset: int, to: int) -> None:
    log, found = life.world.log(), life.logs(topic)[0]
    state = log.read_state()
    choice = skip(state, topic.name, 0, offset, to, "a disk", LogBounds(found.start, found.end, found.epoch))
    commit = commit_of(choice, state, run_id=life.world._new_run_id(), now_ms=life.world.clock_ms, build="year")
    assert log.try_commit(commit).commit is not None
    life.after()


def deleted_subject(life: Life, topic: Topic) -> Iterator[None]:
    """Deletes the subject permanently and registers it again: the same version numbers then have other fields."""
    yield from _filled(life, topic)
    yield from life.may_register()
    while life.is_alone or life.rough_reasons:
        yield
    life.is_alone = True
    life.world.registry.delete_permanently(topic.subject)
    if topic.chance.random() < 0.5:
        yield  # or before the first load after it
    number = len(topic.versions)
    topic.record = dataclasses.replace(
        topic.record,
        fields=tuple(dataclasses.replace(one, name=f"x{number}_{one.name}", aliases=()) for one in topic.record.fields),
    )
    topic.record = _with_new_meanings(topic.record, number)
    topic.versions = []
    life.register(topic)
    life.record_event(topic, f"registered again: {topic.record.text()}")
    life.send(topic, [life.message(topic) for _ in range(8)])
    yield from life.loaded(topic)
    topic.is_quiet = life.is_alone = False


def _with_new_meanings(record, number):  # type: ignore[no-untyped-def]
    fields = tuple(
        dataclasses.replace(
            one,
            meaning=one.meaning + 500,
            inner=tuple(dataclasses.replace(inner, meaning=inner.meaning + 5000) for inner in one.inner),
        )
        for one in record.fields
    )
    return dataclasses.replace(record, fields=fields)


def registered_late(life: Life, topic: Topic) -> Iterator[None]:
    """Sends messages with an unregistered schema, registers the schema later, and replays the quarantine."""
    from headrace.loader.plan.schemas import WriterSchemas
    from headrace.loader.rewrite.replay import ReplaySettings, replay

    topic.is_quiet = True
    yield from life.loaded(topic)
    yield from life.may_register()
    schema_id = life.world.registry.reserve_ids(1)[0]
    record = dataclasses.replace(topic.record, name=f"{topic.record.name}Late")
    messages = [life.message(topic, version=(record, schema_id)) for _ in range(2)]
    for message in messages:
        message.kind, message.event_ms = Kind.BAD, message.timestamp_ms
        message.time = message.event_ms * record.units_per_ms
        message.value = life.encode(record, schema_id, record.value(message.n, message.time))
    life.send(topic, messages + [life.message(topic) for _ in range(20)])
    yield from life.loaded(topic)
    yield from life.may_register()
    life.world.registry.texts[schema_id] = record.text()
    life.world.registry.subjects.setdefault(f"{topic.name}-late", {})[1] = schema_id
    yield
    while life.is_rough:
        yield
    _, rewrites = life.world.drivers()
    settings = ReplaySettings(life.world.policies[topic.name], 1 << 20, 1 << 20)
    schemas = WriterSchemas(life.world.registry, rewrites.log.storage, life.world.subject_of)
    report = replay(rewrites, schemas, topic.name, settings, is_dry=False)
    life.record_event(topic, f"replayed: {report}")
    if sum(report.loaded.values()) != len(messages):
        raise life.story.failed(topic.name, f"{len(messages)} messages should be replayed: {report}")
    for message in messages:
        message.kind = Kind.ROW
        life.judge.pending[topic.name].add(message.n)
    life.judge.late_ids.add(schema_id)
    life.after()
    topic.is_quiet = False


def day_ms(message: Message) -> int:
    return message.event_ms - message.event_ms % DAY_MS


def committed(life: Life, topic: Topic) -> int:
    """Returns the sum of the offsets that the loader's consumer group has committed for a topic."""
    return sum(life.world.cluster.committed.get(TopicPartition(topic.name, n), 0) for n in range(topic.partitions))
