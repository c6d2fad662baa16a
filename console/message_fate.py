"""The place of a message: in a file, in the quarantine or in the log; and the commands that show it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headrace.console.commit_reader import CommitReader
from headrace.console.errors import ConsoleError
from headrace.console.formats import utc
from headrace.loader.commit.file_index import FileIndex
from headrace.loader.commit.state import LoaderState, TopicState
from headrace.loader.inspect.locate import LocatedMessage, OffsetStatus, locate
from headrace.pipeline.storage import warehouse_storage
from headrace.settings import Settings
from headrace.settings.addresses import RemoteDirectory, warehouse_location

SENTENCES: Final = {
    OffsetStatus.ROW: ("good", "The message is a row of the table."),
    OffsetStatus.QUARANTINED: ("warn", "The message is in the quarantine."),
    OffsetStatus.GAP: ("bad", "The message was deleted from the log before it was read."),
    OffsetStatus.SKIPPED: ("warn", "The message was skipped."),
    OffsetStatus.NO_ROW: ("good", "The offset has no row."),
    OffsetStatus.REMOVED: ("warn", "The message was a row of the table, and its file was removed."),
    OffsetStatus.NOT_LOADED: ("unsure", "The message has not been loaded."),
    OffsetStatus.NEVER_LOADED: ("unsure", "The message is from before the first load."),
    OffsetStatus.UNKNOWN: ("unsure", "It is not certain where the message is."),
}
"""By status: how a page shows it, and its sentence."""
NO_KAFKA_COLUMN, WITH_KEYS = "none", "full"
_DAY: Final = re.compile(r"/dt=(\d{4}-\d\d-\d\d)/")


@dataclass(frozen=True, slots=True)
class MessageFate:
    """Where a message is. `files` are the locations of the files that have it, or may have it. `kafka_column` is the
    variant of that column in the topic's table, "" without a table."""

    located: LocatedMessage
    files: tuple[str, ...]
    table: str
    kafka_column: str

    @property
    def look(self) -> str:
        return SENTENCES[self.located.status][0]

    @property
    def sentence(self) -> str:
        return SENTENCES[self.located.status][1]

    @property
    def is_quarantined(self) -> bool:
        return self.located.status is OffsetStatus.QUARANTINED

    def detail(self, *, may_read_payload: bool) -> str:
        """Returns the reason. That of a quarantined message may quote it, so others see its code only."""
        text = self.located.detail
        return text if may_read_payload or not self.is_quarantined else text.partition(":")[0]

    @property
    def row_command(self) -> str:
        """The command that shows the row; "" without a row, and for tables without offsets."""
        one = self.located
        if one.status is not OffsetStatus.ROW or not self.files or self.kafka_column in ("", NO_KAFKA_COLUMN):
            return ""
        day = _DAY.search(self.files[0])
        conditions = [f"dt = '{day[1]}'"] if day else []
        conditions += [f"kafka.partition = {one.partition}", f"kafka.offset = {one.offset}"]
        return sql_command(self.table, conditions)


def read_fate(commits: CommitReader, settings: Settings, topic: str, partition: int, offset: int) -> MessageFate:
    """Returns where a message is, from the commit log, and from files if several may have it.

    Raises:
        ConsoleError: the warehouse is not a local directory, and reading it would start a JVM.
        LoaderError: the commits cannot be read.
        OSError, ValueError: a file cannot be read.
    """
    where = shlex.join([topic, str(partition), str(offset)])
    if isinstance(warehouse_location(settings), RemoteDirectory):
        raise ConsoleError(f"the warehouse is not a local directory; run headrace locate {where}")
    log = commits.opened()
    state = log.state.topics.get(topic)
    if state is None:
        detail = "the topic has not been loaded"
        return MessageFate(LocatedMessage(topic, partition, offset, OffsetStatus.NOT_LOADED, detail), (), "", "")
    files = warehouse_storage(settings).files
    found = locate(log, FileIndex(log), files, topic, partition, offset)
    return MessageFate(found, tuple(map(files.describe, found.files)), table_of(settings, state), state.kafka_column)


def table_of(settings: Settings, state: TopicState) -> str:
    return f"{settings.hive.database}.{state.table}"


def key_command(settings: Settings, state: LoaderState, topic: str, key: str, since_ms: int, until_ms: int) -> str:
    """Returns the command that searches a topic's table for a key; "" without a table. If the table has no keys of
    messages, the command has the placeholder COLUMN."""
    found = state.topics.get(topic)
    if found is None:
        return ""
    literal = "'" + key.replace("\\", "\\\\").replace("'", "\\'") + "'"
    days = [utc(ms, "%Y-%m-%d") for ms in (since_ms, until_ms)]
    condition = f"kafka.key = CAST({literal} AS BINARY)" if found.kafka_column == WITH_KEYS else f"COLUMN = {literal}"
    return sql_command(table_of(settings, found), [f"dt BETWEEN '{days[0]}' AND '{days[1]}'", condition])


def sql_command(table: str, conditions: Sequence[str]) -> str:
    query = f"SELECT * FROM {table} WHERE {' AND '.join(conditions)}"  # noqa: S608  (a text to copy, not run here)
    return f"headrace sql {shlex.quote(query)}"
