"""A large run is committed in chunks, so that a week's backlog of ten thousand partitions is no commit of a gigabyte.

A commit is read as a whole by everybody who catches up, so its size is memory and time for all of them. Topics are
the grain: files mix the partitions of one topic, never topics. Each chunk is an ordinary commit of a work of its
own. Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from headrace.loader.commit.commit import Commit, TopicCommit
from headrace.loader.storage.protocols import Staged

COMMIT_BYTES_MAX = 16 * 1024 * 1024  # read and folded in about half a second; an ordinary run takes a tenth of it

# What each takes in a commit, measured on real ones and rounded up.
TOPIC_BYTES, RANGE_BYTES, FILE_BYTES, FILE_RANGE_BYTES, WINDOW_BYTES = 800, 350, 350, 70, 60


def in_chunks(proposal: Commit, new_run_id: Callable[[], str]) -> list[Commit]:
    """The offer in as few commits as the bound allows; topics keep their order, and the first keeps the run id."""
    chunks: list[dict[str, TopicCommit]] = [{}]
    size = 0
    for topic, committed in proposal.topics.items():
        bytes_of_topic = estimated_bytes(committed)
        if chunks[-1] and size + bytes_of_topic > COMMIT_BYTES_MAX:
            chunks.append({})
            size = 0
        chunks[-1][topic] = committed
        size += bytes_of_topic
    first = dataclasses.replace(proposal, topics=chunks[0])
    rest = dataclasses.replace(proposal, published=frozenset(), retired=frozenset())
    return [first, *(dataclasses.replace(rest, run_id=new_run_id(), topics=topics) for topics in chunks[1:])]


def staged_files(chunk: Commit) -> list[Staged]:
    """The files of a chunk, to be moved to its own work."""
    return [Staged(file.staged, file.length) for committed in chunk.topics.values() for file in committed.files]


def estimated_bytes(committed: TopicCommit) -> int:
    """About what a topic takes in a commit."""
    schema = committed.load_schema
    return (
        TOPIC_BYTES
        + (len(schema.text) + len(schema.fold) if schema else 0)
        + RANGE_BYTES * len(committed.ranges)
        + FILE_BYTES * len(committed.files)
        + FILE_RANGE_BYTES * sum(len(file.ranges) for file in committed.files)
        + WINDOW_BYTES * sum(len(series.windows) for series in committed.audit)
    )
