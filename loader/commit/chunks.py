"""A large run is decided in chunks, so that a week's backlog of ten thousand partitions is no decision of a gigabyte.

A decision is read as a whole by everybody who catches up, so its size is memory and time for all of them. Topics are
the grain: files mix the partitions of one topic, never topics. Each chunk is an ordinary decision of a work of its
own. Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from headrace.loader.commit.decision import Decision, TopicDecision
from headrace.loader.storage.protocols import Staged

DECISION_BYTES_MAX = 16 * 1024 * 1024  # read and folded in about half a second; an ordinary run takes a tenth of it

# What each takes in a decision, measured on real ones and rounded up.
TOPIC_BYTES, RANGE_BYTES, FILE_BYTES, FILE_RANGE_BYTES, WINDOW_BYTES = 800, 350, 350, 70, 60


def in_chunks(offer: Decision, new_work_id: Callable[[], str]) -> list[Decision]:
    """The offer in as few decisions as the bound allows; topics keep their order, and the first keeps the work id."""
    chunks: list[dict[str, TopicDecision]] = [{}]
    size = 0
    for topic, decided in offer.topics.items():
        bytes_of_topic = estimated_bytes(decided)
        if chunks[-1] and size + bytes_of_topic > DECISION_BYTES_MAX:
            chunks.append({})
            size = 0
        chunks[-1][topic] = decided
        size += bytes_of_topic
    first = dataclasses.replace(offer, topics=chunks[0])
    rest = dataclasses.replace(offer, published=frozenset(), retired=frozenset())
    return [first, *(dataclasses.replace(rest, work_id=new_work_id(), topics=topics) for topics in chunks[1:])]


def staged_files(chunk: Decision) -> list[Staged]:
    """The files of a chunk, to be moved to its own work."""
    return [Staged(file.staged, file.length) for decided in chunk.topics.values() for file in decided.files]


def estimated_bytes(decided: TopicDecision) -> int:
    """About what a topic takes in a decision."""
    schema = decided.load_schema
    return (
        TOPIC_BYTES
        + (len(schema.text) + len(schema.fold) if schema else 0)
        + RANGE_BYTES * len(decided.ranges)
        + FILE_BYTES * len(decided.files)
        + FILE_RANGE_BYTES * sum(len(file.ranges) for file in decided.files)
        + WINDOW_BYTES * sum(len(series.windows) for series in decided.audit)
    )
