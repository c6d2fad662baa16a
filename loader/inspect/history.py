"""The history of a topic's table: which commit added or changed which columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.loader.commit.commit import LoadSchema
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.load_schema import column_changes


@dataclass(frozen=True, slots=True)
class TableChange:
    """The changes of a table by one commit. `version` is the newest subject version in the load schema after the
    commit."""

    revision: int
    commit_number: int
    committed_at_ms: int
    subject: str
    version: int
    changes: tuple[str, ...]


def table_history(log: CommitLog, topic: str) -> tuple[TableChange, ...]:
    """Returns the changes of a topic's load schema, oldest first. Not every one changed a column; `changes` is empty
    then.

    Reads only the commits that changed the load schema: each names the one before.

    Args:
        log: the commit log, after a call of `read_state`.
        topic: a topic with a commit.

    Raises:
        CorruptCommit, UnsupportedFormat: a commit cannot be read.
    """
    schema_changes = list(_newest_first(log, topic))[::-1]
    previous_texts = ["", *(schema.text for _, _, schema in schema_changes)]
    return tuple(
        TableChange(
            schema.revision,
            commit_number,
            committed_at_ms,
            schema.subject,
            schema.version,
            column_changes(text, schema.text),
        )
        for (commit_number, committed_at_ms, schema), text in zip(schema_changes, previous_texts, strict=False)
    )


def _newest_first(log: CommitLog, topic: str) -> Iterator[tuple[int, int, LoadSchema]]:
    """Yields (commit number, commit time in ms, new load schema) of each commit that changed the load schema, newest
    first."""
    commit_number = log.state.topics[topic].load_schema.commit_number
    while commit_number:
        commit = log.commit(commit_number)
        schema = commit.topics[topic].load_schema
        assert schema is not None, "the link names a commit that changes the load schema"
        yield commit_number, commit.committed_at_ms, schema
        commit_number = schema.previous_commit_number
