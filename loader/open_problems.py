"""The problems that the newest load left, for commands on any host: topics that it held back, and the registry.

    problems.json   replaced by each load that finds other problems than the one before. It is a hint: if it is lost,
                    the next load writes it again.

A problem is stored until a load of its topic no longer finds it. Problems of messages that were committed are not
stored here but are alarms (`loader.commit.alarms`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace.loader.commit.json_values import canonical, from_json, to_json
from headrace.loader.report import RunReport
from headrace.loader.storage.protocols import CommitStorage

logger = logging.getLogger(__name__)

PROBLEMS_PATH: Final = "problems.json"
SENTENCES_MAX: Final = 5  # per topic; a topic of a thousand partitions may have one for each
SENTENCE_CHARS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class TopicProblems:
    """The problems of one topic. `sentences` are the first `SENTENCES_MAX`, each with its remedy after a semicolon.
    `held_back` is the number of offsets that the load did not commit, and `since_ms` the time of the first load with a
    problem of this topic, in ms since 1970. `is_waiting` means that the topic has no schema yet."""

    sentences: tuple[str, ...]
    since_ms: int
    held_back: int = 0
    is_waiting: bool = False


@dataclass(frozen=True, slots=True)
class OpenProblems:
    """All problems that the newest load left. `registry` is the reason why the registry could not be used, "" if it
    could; `is_refused` means that it rejected the loader's credentials."""

    topics: Mapping[str, TopicProblems] = field(default_factory=dict)
    registry: str = ""
    is_refused: bool = False
    registry_since_ms: int = 0


def read_problems(storage: CommitStorage) -> OpenProblems:
    """Returns the stored problems; none if the file is missing or damaged.

    Raises:
        OSError: the storage failed.
    """
    content = storage.read(PROBLEMS_PATH)
    try:
        return OpenProblems() if content is None else from_json(json.loads(content), OpenProblems)
    except ValueError as error:
        logger.warning("problems_ignored path=%s reason=%s", PROBLEMS_PATH, error)
        return OpenProblems()


def write_problems(storage: CommitStorage, problems: OpenProblems) -> None:
    """Stores the problems.

    Raises:
        OSError: the storage failed.
    """
    storage.replace(PROBLEMS_PATH, canonical(to_json(problems)) + b"\n")


def next_problems(
    before: OpenProblems,
    report: RunReport,
    held_back: Mapping[str, int],
    now_ms: int,
    *,
    alarms: Mapping[str, Collection[str]],
    is_loaded: Callable[[str], bool],
) -> OpenProblems:
    """Returns the problems after a load. Pure.

    Args:
        before: the problems that the load before left.
        report: the report of the load.
        held_back: by topic, the number of offsets that it did not commit.
        now_ms: the time, in ms since 1970.
        alarms: by topic, the sentences in the report that are about committed messages.
        is_loaded: whether a topic was part of the load; others keep their problems.
    """
    topics = {topic: one for topic, one in before.topics.items() if not is_loaded(topic)}
    found = {
        topic: tuple(s for s in report.problems[topic] if s not in alarms.get(topic, ())) for topic in report.problems
    }
    waiting = {topic: (reason,) for topic, reason in report.waiting.items() if topic in held_back}
    for topic, sentences in (waiting | found).items():
        if sentences:
            known = before.topics.get(topic)
            topics[topic] = TopicProblems(
                tuple(sentence[:SENTENCE_CHARS_MAX] for sentence in sentences[:SENTENCES_MAX]),
                known.since_ms if known else now_ms,
                held_back.get(topic, 0),
                topic not in found,
            )
    since_ms = before.registry_since_ms if before.registry else now_ms
    return OpenProblems(
        topics,
        report.registry_outage[:SENTENCE_CHARS_MAX],
        report.is_registry_refused,
        since_ms if report.registry_outage else 0,
    )
