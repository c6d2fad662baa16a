"""Chooses the topics of a year and their events, from a seed."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from support.simulation.year import scripts, troubles
from support.simulation.year.life import Happening, Script, Topic
from support.simulation.year.schemas import TIMES, first_version

PARTITIONS = (1, 1, 1, 2, 2, 3, 4, 6, 8, 16, 32, 64)

TO_TOPICS: Mapping[str, tuple[Script, float]] = {
    "a new version": (scripts.evolves, 1.0),
    "two versions at once": (scripts.evolves_unseen, 0.2),
    "bad messages": (scripts.bad_day, 0.15),
    "a flood of bad messages": (scripts.bad_flood, 0.05),
    "a wrong unit of time": (scripts.wrong_unit, 0.15),
    "transactions": (scripts.aborted, 0.2),
    "a hanging transaction": (scripts.hanging, 0.1),
    "retention": (scripts.retention, 0.3),
    "retention of unread messages": (scripts.retention_unread, 0.15),
    "an unclean election": (scripts.truncated, 0.15),
    "an unclean election of unread messages": (scripts.truncated_unread, 0.1),
    "new leaders": (scripts.new_leaders, 0.2),
    "a topic made anew": (scripts.recreated, 0.1),
    # "a topic made anew without ids": (scripts.recreated_without_ids, 0.05),
    # "ids told or not": (scripts.ids_appear, 0.05),
    "partitions added": (scripts.partitions_added, 0.1),
    "a compacted log": (scripts.compacted_log, 0.2),
    "an emptied log": (scripts.emptied_log, 0.1),
    "a corrupt batch": (scripts.corrupt, 0.2),
    "a subject deleted for good": (scripts.deleted_subject, 0.1),
    "a schema registered late": (scripts.registered_late, 0.1),
}
"""Events that happen to one topic, and how often they happen to a topic in a year on average."""

TO_ALL: Mapping[str, tuple[Script, int]] = {
    "the registry is down": (troubles.registry_down, 2),
    "a topic without a schema": (troubles.no_schema_yet, 3),
    "the registry is put back": (troubles.registry_put_back, 2),
    "a broker is down": (troubles.broker_down, 3),
    "all brokers are down": (troubles.cluster_down, 1),
    "the metastore is down": (troubles.metastore_down, 2),
    "the audit's database is lost": (troubles.audit_lost, 2),
    "the clock is set back": (troubles.clock_back, 2),
    "a load dies": (troubles.dies, 20),
    "two drivers": (troubles.two_drivers, 8),
    "all hints are lost": (troubles.hints_lost, 2),
    "files are compacted": (troubles.compaction, 12),
    "old days are retired": (troubles.expired, 4),
    "files are deleted by hand": (troubles.deleted_by_hand, 2),
}
"""Events that happen to all topics together, and how often in a year."""


@dataclass(frozen=True, slots=True)
class Plan:
    topics: Sequence[Topic]
    happenings: Sequence[Happening]


def plan_year(seed: int, topics: int, days: int, *, rate: int, frequency: float = 1.0) -> Plan:
    """Returns topics that differ much in size and partitions, and their events. Every event happens at least once.

    Args:
        topics: number of topics.
        rate: messages of the largest topic on a day.
        frequency: factor by which events are more or less frequent than in the tables above.
    """
    chance = random.Random(f"{seed}/plan")
    made = []
    for number in range(topics):
        own = random.Random(f"{seed}/{number}")
        name = f"topic{number}" if number % 9 else f"Team.{number}-Events_v{number}"
        record = first_version(f"Event{number}", TIMES[number % len(TIMES)], own)
        # Zipf: the largest has twice as many as the next; small ones are silent on most days.
        share = min(1.0, 0.05 + 3 / (number + 1))
        born = 0 if own.random() < 0.7 else own.randrange(days // 5 + 1)
        partitions = own.choice(PARTITIONS) if number else PARTITIONS[-1]
        made.append(Topic(name, own, max(2, rate // (number + 1)), share, partitions, born, record))
    happenings = []
    for name, (script, often) in TO_TOPICS.items():
        number = max(1, round(often * topics * days / 365 * frequency))
        for topic in (chance.choice(made) for _ in range(number)):
            day = chance.randrange(topic.born + 2, max(topic.born + 3, days - 15))
            happenings.append(Happening(day, name, script, topic.name))
    for name, (script, often) in TO_ALL.items():
        for _ in range(max(1, round(often * days / 365 * frequency))):
            first = 1 if name != "old days are retired" else min(days - 2, days * 2 // 5)
            happenings.append(Happening(chance.randrange(first + 2, max(first + 3, days - 10)), name, script, ""))
    return Plan(made, happenings)
