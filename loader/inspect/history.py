"""How the table of a topic came to have the columns that it has, from the commits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.loader.commit.commit import LoadSchema
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.load_schema import column_changes


@dataclass(frozen=True, slots=True)
class TableChange:
    """What one commit changed of a table; `version` is the newest of the subject that was taken up then."""

    revision: int
    commit_number: int
    committed_at_ms: int
    subject: str
    version: int
    changes: tuple[str, ...]


def table_history(log: CommitLog, topic: str) -> tuple[TableChange, ...]:
    """The changes of a topic's table, oldest first.

    Every commit on the topic is read, which takes a while for one that was loaded every ten minutes for years.

    Args:
        log: with its state read.
        topic: one that something has been committed of.

    Raises:
        CorruptCommit, UnsupportedFormat: a commit on the way cannot be read.
    """
    found = list(_newest_first(log, topic))[::-1]
    before = ["", *(schema.text for _, _, schema in found)]
    return tuple(
        TableChange(
            schema.revision,
            commit_number,
            committed_at_ms,
            schema.subject,
            schema.version,
            column_changes(text, schema.text),
        )
        for (commit_number, committed_at_ms, schema), text in zip(found, before, strict=False)
    )


def _newest_first(log: CommitLog, topic: str) -> Iterator[tuple[int, int, LoadSchema]]:
    """(commit number, committed at in ms, what the load schema became) of each commit that changed it, back to the
    first."""
    for document in log.back(topic, log.state):
        schema = document.value.topics[topic].load_schema
        if schema is not None:
            yield document.value.commit_number, document.value.committed_at_ms, schema
            if schema.revision == 1:
                return
