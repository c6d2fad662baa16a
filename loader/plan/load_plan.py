"""The plan of one run: topics, offsets, schemas and tasks.

`headrace load plan` prints it, `headrace load` runs it; both use the same code up to here.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.hive_ddl.names import directory_name, table_name
from headrace.loader.commit.json_values import canonical
from headrace.loader.commit.state import LoaderState, TopicState
from headrace.loader.load_schema import column_changes
from headrace.loader.plan.discover import DiscoveredTopic, Discovery
from headrace.loader.plan.packing import pack
from headrace.loader.plan.ranges import TopicRanges, offset_ranges, remedy_of, topic_ranges
from headrace.loader.plan.schemas import SchemaProblem, SchemasUnavailable, TopicSchemas, WriterSchemas
from headrace.loader.plan.time_fields import time_field_note
from headrace.loader.policy import AUTO, DAY, HOUR, TopicPolicy
from headrace.loader.work_unit import OffsetRange, TaskSettings, TopicPlan, WorkUnit

TOPICS_NAMED_MAX = 3  # in one note


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """The settings for planning. `tasks` is the maximum number of tasks; sizes are in bytes. `policy_of` returns the
    settings of a topic."""

    tasks: int
    range_bytes_max: int
    file_bytes_target: int
    policy_of: Callable[[str], TopicPolicy]
    build: str


@dataclass(frozen=True, slots=True)
class PlannedTopic:
    """The part of the plan for one topic. `known` is the topic's state, None if it has no commit. `policy` are the
    settings in force; for an existing table, they include the table's layout. `chooses_partitioning` means that this
    run chooses it (`loader.partition_by = auto`); the tasks then write files by day, and the messages of a busy topic
    are read again into files by hour."""

    topic: str
    known: TopicState | None
    ranges: TopicRanges
    schemas: TopicSchemas
    table: str
    directory: str
    policy: TopicPolicy
    chooses_partitioning: bool = False

    @property
    def known_ids(self) -> frozenset[int]:
        """The schema ids that this run need not add to the topic's `foreign_ids`: ids of the subject's versions, and
        registered ids found in messages of earlier runs."""
        return self.schemas.load_schema.writer_ids | (self.known.foreign_ids if self.known else frozenset())

    @property
    def writer_schema_ids(self) -> frozenset[int]:
        """The ids of the schemas that are in the plan; messages with these ids can be loaded."""
        return frozenset(self.schemas.writer_schemas)

    @property
    def column_changes(self) -> tuple[str, ...]:
        """Describes how this run will change the columns of the topic's table; empty for a new table."""
        if self.known is None or not self.schemas.is_changed:
            return ()
        return column_changes(self.known.load_schema.text, self.schemas.load_schema.text)

    @property
    def has_changes(self) -> bool:
        return (
            self.known is None
            or self.schemas.is_changed
            or self.ranges.starts_again
            or self.ranges.continues
            or any(planned.has_changes for planned in self.ranges.ranges)
        )


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The plan of one run.

    `commit_number` is the newest commit at planning. `units` are the inputs of the tasks; `imbalance` is the weight of
    the heaviest task divided by the mean. `waiting` are topics that cannot be loaded yet, because no schema is
    registered, or because none is cached and the registry is unavailable; with the reason. `problems` are sentences by
    topic that need action, `notes` are sentences that need none. `registry_outage` is the reason why the registry is
    unavailable, or "". `discovered` are the topics to load that the brokers can serve now, fetched after the time
    `discovery_start_ms`.
    """

    run_id: str
    commit_number: int
    planned_topics: Mapping[str, PlannedTopic]
    units: tuple[WorkUnit, ...]
    imbalance: float
    waiting: Mapping[str, str]
    problems: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...]
    registry_outage: str
    discovered: Mapping[str, DiscoveredTopic]
    discovery_start_ms: int

    @property
    def has_changes(self) -> bool:
        return any(planned_topic.has_changes for planned_topic in self.planned_topics.values())


def make_plan(
    state: LoaderState,
    discovery: Discovery,
    schemas: WriterSchemas,
    *,
    run_id: str,
    discovery_start_ms: int,
    settings: PlanSettings,
    task_settings: TaskSettings,
    only: Collection[str] = (),
) -> LoadPlan:
    """Plans a run that loads the offsets after those in the commit log, of all discovered topics that can be loaded
    now.

    Args:
        state: state of the commit log.
        discovery: the topics to load with their offsets. Fetch it before this call, because the schemas must be newer
            than the offsets.
        schemas: fetches the topics' schemas.
        discovery_start_ms: a time before the offsets were fetched.
        task_settings: the settings that every task receives.
        only: names of the topics to which the command was limited, empty for all topics. `LoadPlan.notes` mentions
            topics that have commits but are not in `discovery`: all such topics, or those in `only` if it is not empty.
    """
    waiting: dict[str, str] = {}
    problems: dict[str, tuple[str, ...]] = {
        topic: (f"{reason}; {remedy_of(reason)}",) for topic, reason in discovery.unusable.items()
    }
    notes: list[str] = []
    planned_topics: dict[str, PlannedTopic] = {}
    used_table_names = {known.table for known in state.topics.values()}
    schemas.prefetch({topic: state.topics.get(topic) for topic in discovery.topics})
    for topic, found in discovery.topics.items():
        known = state.topics.get(topic)
        result = schemas.of_topic(topic, known)
        if isinstance(result, SchemasUnavailable):
            waiting[topic] = result.reason
        elif isinstance(result, SchemaProblem):
            problems[topic] = (result.reason,)
        else:
            planned_topic = _planned_topic(
                found, known, state.starts.get(topic, {}), result, settings, used_table_names
            )
            used_table_names.add(planned_topic.table)
            planned_topics[topic] = planned_topic
            notes += [f"{topic}: {note}" for note in planned_topic.ranges.notes]
            if result.problems or planned_topic.ranges.problems:
                problems[topic] = (*result.problems, *planned_topic.ranges.problems)
    read_topics = {
        topic: planned_topic
        for topic, planned_topic in planned_topics.items()
        if any(one.has_changes for one in planned_topic.ranges.ranges)
    }
    run_hash = zlib.crc32(run_id.encode())
    for topic, replaced in schemas.replaced(
        {topic: planned_topic.writer_schema_ids for topic, planned_topic in read_topics.items()}, run_hash
    ).items():
        del planned_topics[topic]
        problems[topic] = (*problems.get(topic, ()), replaced.reason)
    notes += _layout_notes(planned_topics.values(), settings)
    notes += _time_field_notes(planned_topics[topic] for topic in read_topics if topic in planned_topics)
    missing = state.topics.keys() - discovery.topics.keys() - discovery.unusable.keys()
    reported = sorted(topic for topic in missing if not only or topic in only)
    notes += [f"{topic}: not on the brokers now, or excluded; its table remains" for topic in reported]
    packing = pack(
        [
            offsets
            for planned_topic in planned_topics.values()
            for offsets in offset_ranges(planned_topic.topic, planned_topic.ranges)
        ],
        tasks=settings.tasks,
        file_bytes_target=settings.file_bytes_target,
    )
    units = work_units(packing.tasks, planned_topics, run_id, settings.build, task_settings)
    return LoadPlan(
        run_id,
        state.commit_number,
        planned_topics,
        units,
        packing.imbalance,
        waiting,
        problems,
        tuple(notes),
        schemas.outage,
        discovery.topics,
        discovery_start_ms,
    )


def _planned_topic(
    found: DiscoveredTopic,
    known: TopicState | None,
    starts: Mapping[int, int],
    schemas: TopicSchemas,
    settings: PlanSettings,
    used_table_names: set[str],
) -> PlannedTopic:
    policy = settings.policy_of(found.topic)
    if known is not None:
        policy = policy.with_table(known.partition_by, known.kafka_column)
    chooses_partitioning = policy.partition_by == AUTO
    if chooses_partitioning:
        policy = dataclasses.replace(policy, partition_by=DAY)
    return PlannedTopic(
        topic=found.topic,
        known=known,
        ranges=topic_ranges(
            found, known, starts, on_data_loss=policy.on_data_loss, range_bytes_max=settings.range_bytes_max
        ),
        schemas=schemas,
        # The table name is chosen only once, because it depends on the names of other topics' tables.
        table=known.table if known else table_name(found.topic, used_table_names),
        directory=known.directory if known else directory_name(found.topic),
        policy=policy,
        chooses_partitioning=chooses_partitioning,
    )


def _layout_notes(planned_topics: Iterable[PlannedTopic], settings: PlanSettings) -> Iterator[str]:
    """Yields notes about existing tables whose layout differs from the settings. There is one sentence per setting and
    value; it names at most `TOPICS_NAMED_MAX` topics."""
    topics_by_sentence: dict[str, list[str]] = defaultdict(list)
    for planned_topic in planned_topics:
        configured, actual = settings.policy_of(planned_topic.topic), planned_topic.policy
        if configured.partition_by not in (AUTO, actual.partition_by):
            sentence = (
                f"loader.partition_by = {configured.partition_by} applies to new tables only; these topics' tables "
                f"stay partitioned by {actual.partition_by} until headrace hive repartition"
            )
            topics_by_sentence[sentence].append(planned_topic.topic)
        if configured.kafka_column != actual.kafka_column:
            sentence = (
                f"loader.kafka_column = {configured.kafka_column} would remove fields of existing rows; these topics' "
                f"tables keep {actual.kafka_column}"
            )
            topics_by_sentence[sentence].append(planned_topic.topic)
    for sentence, topics in sorted(topics_by_sentence.items()):
        more = f" and {len(topics) - TOPICS_NAMED_MAX:,} more" if len(topics) > TOPICS_NAMED_MAX else ""
        yield f"{sentence}: {', '.join(topics[:TOPICS_NAMED_MAX])}{more}"


def _time_field_notes(planned_topics: Iterable[PlannedTopic]) -> Iterator[str]:
    """Yields a note for each topic with messages to read whose time field cannot be used."""
    for planned_topic in planned_topics:
        schemas = planned_topic.schemas
        note = time_field_note(
            schemas.writer_schemas, schemas.newest_id, schemas.load_schema.time_property, planned_topic.policy
        )
        if note:
            yield f"{planned_topic.topic}: {note}"


def work_units(
    tasks: Sequence[Sequence[OffsetRange]],
    planned_topics: Mapping[str, PlannedTopic],
    run_id: str,
    build: str,
    task_settings: TaskSettings,
) -> tuple[WorkUnit, ...]:
    return tuple(
        WorkUnit(
            run_id=run_id,
            task=number,
            ranges=tuple(ranges),
            topics={
                topic: topic_plan(planned_topics[topic])
                for topic in sorted({one.topic_partition.topic for one in ranges})
            },
            settings=task_settings,
            build=build,
        )
        for number, ranges in enumerate(tasks)
    )


def hourly_plan(plan: LoadPlan, topics: Collection[str], first_task: int) -> tuple[LoadPlan, tuple[WorkUnit, ...]]:
    """Returns the plan with tables by hour for these new topics, and the units that read their messages again.

    Args:
        topics: new topics whose messages were read into files by day.
        first_task: the number of the first unit; the units that were read have lower numbers.
    """
    hourly = {
        topic: dataclasses.replace(one, policy=dataclasses.replace(one.policy, partition_by=HOUR))
        for topic, one in plan.planned_topics.items()
        if topic in topics
    }
    plan = dataclasses.replace(plan, planned_topics={**plan.planned_topics, **hourly})
    units: list[WorkUnit] = []
    for unit in plan.units:
        ranges = tuple(one for one in unit.ranges if one.topic_partition.topic in topics)
        if ranges:
            inputs = {topic: topic_plan(hourly[topic]) for topic in unit.topics if topic in topics}
            units.append(dataclasses.replace(unit, task=first_task + len(units), ranges=ranges, topics=inputs))
    return plan, tuple(units)


def topic_plan(planned_topic: PlannedTopic) -> TopicPlan:
    """Returns the inputs of a task for one topic."""
    schemas = planned_topic.schemas
    return TopicPlan(
        topic=planned_topic.topic,
        load_schema=schemas.load_schema.text,
        writer_schemas=schemas.writer_schemas,
        policy=planned_topic.policy,
        absent_ids=schemas.absent_ids,
        time_property=schemas.load_schema.time_property,
        routes=schemas.routes,
        newest_id=schemas.newest_id,
    )


def plan_summary(plan: LoadPlan) -> bytes:
    """Returns a summary of the plan as JSON for operators. No program reads it."""
    units = [
        {
            "task": unit.task,
            "ranges": [
                f"{one.topic_partition.topic}-{one.topic_partition.partition} [{one.start}, {one.end})"
                for one in unit.ranges
            ],
        }
        for unit in plan.units
    ]
    return canonical({"run_id": plan.run_id, "after_commit_number": plan.commit_number, "units": units}) + b"\n"


def plan_json(plan: LoadPlan) -> dict[str, Any]:
    """Returns the plan as JSON values, for `headrace load plan --format json` and the console."""
    return {
        "after_commit_number": plan.commit_number,
        "tasks": [
            {
                "task": unit.task,
                "ranges": [
                    {
                        "topic": one.topic_partition.topic,
                        "partition": one.topic_partition.partition,
                        "start": one.start,
                        "end": one.end,
                        "bytes_estimate": one.bytes_estimate,
                    }
                    for one in unit.ranges
                ],
            }
            for unit in plan.units
        ],
        "topics": {
            topic: {
                "table": planned_topic.table,
                "new": planned_topic.known is None,
                "schema_changes": planned_topic.known is not None and planned_topic.schemas.is_changed,
                "changes": list(planned_topic.column_changes),
            }
            for topic, planned_topic in plan.planned_topics.items()
        },
        "waiting": dict(plan.waiting),
        "problems": {topic: list(texts) for topic, texts in plan.problems.items()},
        "notes": list(plan.notes),
        "imbalance": plan.imbalance,
    }
