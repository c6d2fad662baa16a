"""Runs the units of a plan (a unit is the input of one task), and continues after messages with unregistered schema
ids.

A range stops before the first message with a schema id that the plan does not know, and returns this id with the
unknown ids that follow. These ids are then looked up in the registry. Because this happens after the offsets were read,
an id that the registry lacks was not registered when its message was written: the message is bad, and the rest of the
range is read as a further unit, in which the id is marked as absent. Absent ids are not stored, because they may be
registered later.

An id that the registry has ends the range for this run. It may belong to a new version of the topic's subject, which
must be folded into the load schema first; the next plan does that. An id without a response, because the registry is
down or denies access, ends the range too, and the next run requests it again. So does an id that was not looked up
because the run has already found `ABSENT_IDS_MAX` absent ones.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from headrace.loader.errors import LoaderError
from headrace.loader.plan.schemas import WriterSchemas
from headrace.loader.work_unit import OffsetRange, RangeResult, UnitResult, WorkUnit

logger = logging.getLogger(__name__)

ABSENT_IDS_MAX = 10_000  # looked up per run: a topic of random bytes must not delay other topics for minutes


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The result of `read_units`, which runs the units of a plan (a unit is the input of one task).

    A range stops before a schema id that the plan does not know. If the registry does not have the schema, a further
    unit reads the rest of the range, and the range of the first unit is shortened to the part that it read. `units` are
    the units of the plan so shortened, and the further units; `results` are their results. `registered_ids` are, by
    topic, the ids that the plan did not know and the registry or the cache has. `problems` are sentences by topic,
    `notes` are sentences that name their topic. Units run in rounds, the plan's units in the first; `read_ms` is the
    time of each round's slowest task, summed over the rounds.
    """

    units: tuple[WorkUnit, ...]
    results: tuple[UnitResult, ...]
    registered_ids: Mapping[str, frozenset[int]]
    problems: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...]
    read_ms: int


def read_units(
    units: Sequence[WorkUnit], run_units: Callable[[Sequence[WorkUnit]], Sequence[UnitResult]], schemas: WriterSchemas
) -> ReadResult:
    """Runs the units of a plan (a unit is the input of one task) and returns their results. A range stops before a
    message with a schema id that the plan does not know. Such ids are then looked up in the registry; if the registry
    lacks the id at which a range stopped, a further unit reads the rest of the range.

    Args:
        units: the units of the plan, with consecutive task numbers.
        run_units: runs units as tasks, and returns their results.
        schemas: looks up the unknown ids.

    Raises:
        LoaderError: the tasks could not run.
    """
    read: list[WorkUnit] = []
    results: list[UnitResult] = []
    absent: set[int] = set()
    registered: dict[str, frozenset[int]] = defaultdict(frozenset)
    problems: dict[str, dict[str, None]] = defaultdict(dict)
    notes: dict[str, None] = {}
    read_ms = 0
    pending_units = tuple(units)
    while pending_units:
        round_results = run_units(pending_units)
        _check_builds(round_results)
        results += round_results
        read_ms += max((result.duration_ms for result in round_results), default=0)
        stopped = [one for result in round_results for one in result.ranges if one.unknown_ids]
        requested_ids = nearest_ids(stopped, ABSENT_IDS_MAX - len(absent))
        fetched = schemas.look_up(requested_ids)
        absent |= fetched.absent
        for one in stopped:
            topic = one.done.topic_partition.topic
            registered[topic] |= fetched.registered & frozenset(one.unknown_ids)
            stop_id = one.unknown_ids[0]
            if stop_id in fetched.refused:
                problems[topic][f"schema {stop_id}: {fetched.refused[stop_id]}"] = None
            elif stop_id not in absent and stop_id not in requested_ids:
                notes[
                    f"{topic}: messages have over {ABSENT_IDS_MAX:,} unregistered schema ids; the next load continues"
                ] = None
        shortened, pending_units = continued_units(pending_units, round_results, absent, pending_units[-1].task + 1)
        read += shortened
        if pending_units:
            logger.info("ranges_continued tasks=%d unregistered_schema_ids=%d", len(pending_units), len(absent))
    return ReadResult(
        tuple(read),
        tuple(results),
        dict(registered),
        {topic: tuple(sentences) for topic, sentences in problems.items()},
        tuple(notes),
        read_ms,
    )


def with_reading(one: ReadResult, other: ReadResult) -> ReadResult:
    """Returns one result of two consecutive readings, `one` and then `other`, which has higher task numbers."""
    return ReadResult(
        (*one.units, *other.units),
        (*one.results, *other.results),
        {
            topic: one.registered_ids.get(topic, frozenset()) | other.registered_ids.get(topic, frozenset())
            for topic in {*one.registered_ids, *other.registered_ids}
        },
        {
            topic: tuple(dict.fromkeys((*one.problems.get(topic, ()), *other.problems.get(topic, ()))))
            for topic in {*one.problems, *other.problems}
        },
        tuple(dict.fromkeys((*one.notes, *other.notes))),
        one.read_ms + other.read_ms,
    )


def nearest_ids(stopped: Sequence[RangeResult], count_max: int) -> tuple[int, ...]:
    """Returns at most `count_max` distinct unknown schema ids to look up. The first id of every stopped range comes
    first, because it stopped the range; then the second id of every range, and so on. Pure.

    Args:
        stopped: the results of ranges that stopped before a message with an unknown id.
    """
    positions: dict[int, int] = {}
    for one in stopped:
        for position, schema_id in enumerate(one.unknown_ids):
            positions[schema_id] = min(position, positions.get(schema_id, position))
    return tuple(sorted(positions, key=lambda schema_id: (positions[schema_id], schema_id))[:count_max])


def continued_units(
    units: Sequence[WorkUnit], results: Sequence[UnitResult], absent: Collection[int], next_task: int
) -> tuple[tuple[WorkUnit, ...], tuple[WorkUnit, ...]]:
    """Adds units (inputs of tasks) that read the rest of the ranges that stopped before a message with an absent schema
    id. Returns two results: the units with these ranges ending where they stopped, and the added units. Pure.

    Args:
        results: the results of `units`.
        absent: schema ids that the registry does not have.
        next_task: task number of the first added unit.
    """
    stops = {
        (result.task, one.done.topic_partition, one.done.start): one.done.end
        for result in results
        for one in result.ranges
        if one.unknown_ids and one.unknown_ids[0] in absent
    }
    shortened: list[WorkUnit] = []
    added: list[WorkUnit] = []
    for unit in units:
        ranges: list[OffsetRange] = []
        rest: list[OffsetRange] = []
        for offsets in unit.ranges:
            stop = stops.get((unit.task, offsets.topic_partition, offsets.start))
            ranges.append(offsets if stop is None else dataclasses.replace(offsets, end=stop))
            rest += [] if stop is None else [dataclasses.replace(offsets, start=stop)]
        shortened.append(dataclasses.replace(unit, ranges=tuple(ranges)))
        if rest:
            topics = {
                topic: dataclasses.replace(plan, absent_ids=plan.absent_ids.union(absent))
                for topic, plan in unit.topics.items()
            }
            task = next_task + len(added)
            added.append(dataclasses.replace(unit, task=task, ranges=tuple(rest), topics=topics))
    return tuple(shortened), tuple(added)


def _check_builds(results: Sequence[UnitResult]) -> None:
    errors = sorted({result.error for result in results if result.error})
    if errors:
        raise LoaderError(f"tasks could not run: {'; '.join(errors)}")
