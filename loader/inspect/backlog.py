"""The messages that the next load would read, by topic, and the offsets that vanished before they were read. Pure.

Uses the functions of the plan, so that a status and the next load report the same losses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.loader.commit.state import LoaderState
from headrace.loader.plan.discover import DiscoveredTopic, Discovery
from headrace.loader.plan.ranges import PlannedRange, topic_ranges

UNLIMITED = 1 << 62


@dataclass(frozen=True, slots=True)
class TopicBacklog:
    """The unread messages of a topic.

    Attributes:
        is_loaded: whether the topic has a commit; otherwise it waits, such as for its first schema.
        lag: number of unread offsets that can be read.
        next_offsets: by partition with unread offsets, the first of them.
        losses: sentences about lost offsets, each with its remedy.
        is_skipped: whether the next load skips the lost offsets, as `on_data_loss=skip` permits.
        errors: by partition, the reason why its offsets are unknown; -1 stands for the topic.
    """

    topic: str
    is_loaded: bool
    lag: int
    next_offsets: Mapping[int, int]
    losses: tuple[str, ...]
    is_skipped: bool
    errors: Mapping[int, str]


def backlogs(
    state: LoaderState, discovery: Discovery, on_data_loss_of: Callable[[str], str]
) -> tuple[TopicBacklog, ...]:
    """Returns the backlog of each topic that is to be loaded, by name.

    Args:
        state: the loader's state after its newest commit.
        discovery: the topics on the brokers.
        on_data_loss_of: returns the setting `on_data_loss` of a topic.
    """
    found = [_backlog(state, topic, on_data_loss_of(topic.topic)) for topic in discovery.topics.values()]
    unusable = [
        TopicBacklog(topic, topic in state.topics, 0, {}, (), False, {-1: reason})
        for topic, reason in discovery.unusable.items()
    ]
    return tuple(sorted((*found, *unusable), key=lambda one: one.topic))


def _backlog(state: LoaderState, found: DiscoveredTopic, on_data_loss: str) -> TopicBacklog:
    name = found.topic
    ranges = topic_ranges(
        dataclasses.replace(found, errors={}),
        state.topics.get(name),
        state.starts.get(name, {}),
        on_data_loss=on_data_loss,
        range_bytes_max=UNLIMITED,
    )
    unread = {planned.partition: planned for planned in ranges.ranges if planned.end > planned.start}
    skips = ranges.starts_again or any(map(_has_lost, ranges.ranges))
    return TopicBacklog(
        topic=name,
        is_loaded=name in state.topics,
        lag=sum(planned.end - planned.start for planned in unread.values()),
        next_offsets={number: planned.start for number, planned in sorted(unread.items())},
        losses=ranges.problems or (ranges.notes if skips else ()),
        is_skipped=skips and not ranges.problems,
        errors=found.errors,
    )


def _has_lost(planned: PlannedRange) -> bool:
    return planned.previous not in (None, planned.start)
