"""The files behind a query, as the commits describe them. Hive's reader names no file in an error, and leaves out the
rows of a missing or truncated file without one.

Only for local warehouses: for one on HDFS or S3, `headrace sql` would first have to start another JVM.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping
from typing import Final

from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.errors import LoaderError
from headrace.loader.inspect.finding_texts import finding_counts_text, repair_text
from headrace.loader.inspect.latest_view import VIEW_SUFFIX
from headrace.loader.inspect.open_findings import read_checks
from headrace.loader.inspect.rolling_check import RollingCheck
from headrace.pipeline.load import commit_log
from headrace.pipeline.storage import warehouse_storage
from headrace.settings import Settings
from headrace.settings.addresses import RemoteDirectory, state_location, warehouse_location

logger = logging.getLogger(__name__)

SEARCH_S_MAX: Final = 10.0
"""Time for the search for the damaged file of a failed query."""

_WORD = re.compile(r"\w+")


def open_finding_notes(settings: Settings, statement: str) -> tuple[str, ...]:
    """Returns a note for each table in the text of a query whose files loads found missing or changed, so that the
    result may lack rows."""
    try:
        log = _local_log(settings)
        if log is None:
            return ()
        checks = read_checks(log.storage)
        if not checks.topics():
            return ()
        tables = {topic: known.table for topic, known in log.read_state().topics.items() if topic in checks.topics()}
        return tuple(
            f"table {tables[topic]}: {finding_counts_text(checks, topic)}, so the result may be wrong (headrace status)"
            for topic in _topics_in(statement, tables)
        )
    except (LoaderError, OSError) as error:  # the query is not affected
        logger.debug("open_findings_not_read reason=%s", error)
        return ()


def damaged_file_text(settings: Settings, statement: str) -> str:
    """Returns the damaged or foreign file of a table in the text of a failed query, with its topic and the repair.
    Returns "" if none is found.

    Reads the files of the tables until the first damaged one, at most for `SEARCH_S_MAX`.
    """
    try:
        log = _local_log(settings)
        if log is None:
            return ""
        tables = {topic: known.table for topic, known in log.read_state().topics.items()}
        storage = warehouse_storage(settings)
        check = RollingCheck(log, storage.files, now_s=time.monotonic)
        found = check.first_damage(_topics_in(statement, tables), SEARCH_S_MAX)
    except (LoaderError, OSError) as error:
        logger.debug("damaged_file_not_searched reason=%s", error)
        return ""
    if found is None:
        return ""
    return f"topic {found.topic}: file {storage.files.describe(found.where)}: {found.message}; {repair_text(found)}"


def _local_log(settings: Settings) -> CommitLog | None:
    if any(isinstance(one, RemoteDirectory) for one in (warehouse_location(settings), state_location(settings))):
        return None
    log = commit_log(settings, read_only=True)
    log.check_format(writing=False)
    return log


def _topics_in(statement: str, tables: Mapping[str, str]) -> list[str]:
    """Returns the topics whose table, or the view of it, is a word in the text of a query."""
    words = {word.lower() for word in _WORD.findall(statement)}
    return [
        topic
        for topic, table in sorted(tables.items())
        if not words.isdisjoint((table.lower(), f"{table}{VIEW_SUFFIX}".lower()))
    ]
