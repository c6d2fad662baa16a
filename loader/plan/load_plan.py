"""The whole plan of one run: which topics, which offsets, under which schemas, in which tasks.

`headrace load plan` prints it, `headrace load` runs it: the same path up to here.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.hive_ddl.names import folder_name, table_name
from headrace.loader.decide.json_values import canonical
from headrace.loader.decide.state import LoaderState, TopicState
from headrace.loader.plan.discover import DiscoveredTopic, Discovery
from headrace.loader.plan.packing import pack
from headrace.loader.plan.ranges import TRIED_AGAIN, TopicRanges, offset_ranges, topic_ranges
from headrace.loader.plan.schemas import SchemaProblem, TopicSchemas, Waiting, WriterSchemas
from headrace.loader.work_unit import OffsetRange, TaskSettings, TopicPlan, WorkUnit


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """The part of the settings that planning needs. `tasks` is the size of the pool; sizes are in bytes."""

    tasks: int
    partition_by: str
    range_bytes_max: int
    file_bytes_target: int
    lost_ground: str
    build: str


@dataclass(frozen=True, slots=True)
class TopicWork:
    """What this run may decide of a topic; `known` is None for one that was never decided."""

    topic: str
    known: TopicState | None
    ranges: TopicRanges
    schemas: TopicSchemas
    table: str
    folder: str
    partition_by: str

    @property
    def known_ids(self) -> frozenset[int]:
        """The schema ids that need no asking: of the subject, and those met in messages before."""
        return self.schemas.load_schema.writer_ids | (self.known.asked_ids if self.known else frozenset())

    @property
    def has_news(self) -> bool:
        return (
            self.known is None
            or self.schemas.is_changed
            or self.ranges.starts_again
            or any(planned.has_news for planned in self.ranges.ranges)
        )


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """`slot` is the newest decision that the plan knows of. `waiting`, `problems`, `notes` and `registry_outage` are as
    in the report."""

    work_id: str
    slot: int
    works: Mapping[str, TopicWork]
    units: tuple[WorkUnit, ...]
    imbalance: float
    waiting: Mapping[str, str]
    problems: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...]
    registry_outage: str

    @property
    def has_news(self) -> bool:
        return any(work.has_news for work in self.works.values())


def make_plan(
    state: LoaderState,
    discovery: Discovery,
    schemas: WriterSchemas,
    *,
    work_id: str,
    settings: PlanSettings,
    task_settings: TaskSettings,
) -> LoadPlan:
    """Plans what has come since `state`.

    Args:
        discovery: read before this is called, since `schemas` asks the registry and must do so after it.
    """
    waiting: dict[str, str] = {}
    problems: dict[str, tuple[str, ...]] = {
        topic: (f"{why}; {TRIED_AGAIN}",) for topic, why in discovery.unusable.items()
    }
    notes: list[str] = []
    works: dict[str, TopicWork] = {}
    taken = {known.table for known in state.topics.values()}
    for topic, found in discovery.topics.items():
        known = state.topics.get(topic)
        answer = schemas.of_topic(topic, known)
        if isinstance(answer, Waiting):
            waiting[topic] = answer.reason
        elif isinstance(answer, SchemaProblem):
            problems[topic] = (answer.reason,)
        else:
            work = _topic_work(found, known, answer, settings, taken)
            taken.add(work.table)
            works[topic] = work
            notes += [f"{topic}: {note}" for note in work.ranges.notes]
            if work.ranges.problems:
                problems[topic] = work.ranges.problems
    gone = sorted(topic for topic in state.topics if topic not in discovery.topics and topic not in discovery.unusable)
    notes += [f"{topic}: not on the brokers now (or excluded); its table stays" for topic in gone]
    packing = pack(
        [offsets for work in works.values() for offsets in offset_ranges(work.topic, work.ranges)],
        tasks=settings.tasks,
        file_bytes_target=settings.file_bytes_target,
    )
    units = _work_units(packing.tasks, works, work_id, settings.build, task_settings)
    return LoadPlan(
        work_id, state.slot, works, units, packing.imbalance, waiting, problems, tuple(notes), schemas.outage
    )


def _topic_work(
    found: DiscoveredTopic,
    known: TopicState | None,
    schemas: TopicSchemas,
    settings: PlanSettings,
    taken: set[str],
) -> TopicWork:
    return TopicWork(
        topic=found.topic,
        known=known,
        ranges=topic_ranges(found, known, lost_ground=settings.lost_ground, range_bytes_max=settings.range_bytes_max),
        schemas=schemas,
        # Chosen once: names of other topics' tables play a part in it, and files lie in the layout they began with.
        table=known.table if known else table_name(found.topic, taken),
        folder=known.folder if known else folder_name(found.topic),
        partition_by=known.partition_by if known else settings.partition_by,
    )


def _work_units(
    tasks: Sequence[Sequence[OffsetRange]],
    works: Mapping[str, TopicWork],
    work_id: str,
    build: str,
    task_settings: TaskSettings,
) -> tuple[WorkUnit, ...]:
    """One unit per task and layout: topics that began with another `partition_by` keep theirs."""
    units: list[WorkUnit] = []
    for ranges in tasks:
        by_layout: dict[str, list[OffsetRange]] = defaultdict(list)
        for offsets in ranges:
            by_layout[works[offsets.topic_partition.topic].partition_by].append(offsets)
        for layout, members in sorted(by_layout.items()):
            topics = {offsets.topic_partition.topic for offsets in members}
            units.append(
                WorkUnit(
                    work_id=work_id,
                    task=len(units),
                    ranges=tuple(members),
                    topics={topic: _topic_plan(works[topic]) for topic in sorted(topics)},
                    settings=dataclasses.replace(task_settings, partition_by=layout),
                    build=build,
                )
            )
    return tuple(units)


def _topic_plan(work: TopicWork) -> TopicPlan:
    schemas = work.schemas
    return TopicPlan(
        topic=work.topic,
        load_schema=schemas.load_schema.text,
        writer_schemas=schemas.writer_schemas,
        absent_ids=schemas.absent_ids,
        time_property=schemas.load_schema.time_property,
        routes=schemas.routes,
    )


def plan_for_people(plan: LoadPlan) -> bytes:
    """A summary of the plan; nothing reads it back."""
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
    return canonical({"work_id": plan.work_id, "after_slot": plan.slot, "units": units}) + b"\n"
