"""Formats the log on standard error, as text or as one JSON object per line.

The environment configures it, because logging starts before settings are read: `HEADRACE_LOG_LEVEL` (a level of
Python's logging, default INFO) and `HEADRACE_LOG_FORMAT` (`text`, or `json` for log collectors). Times have a UTC
offset. In systemd's journal, which has its own times, text begins with the priority instead (sd-daemon(3)).
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping
from datetime import datetime

LEVEL_VARIABLE = "HEADRACE_LOG_LEVEL"
FORMAT_VARIABLE = "HEADRACE_LOG_FORMAT"
FORMATS = ("text", "json")
LOG_DEFAULTS: Mapping[str, str] = {LEVEL_VARIABLE: "INFO", FORMAT_VARIABLE: FORMATS[0]}
TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
JOURNAL_TEXT = "%(levelname)s %(name)s: %(message)s"
JOURNAL_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
DEBUG_PRIORITY = 7
JOURNAL_VARIABLE = "JOURNAL_STREAM"
"""Set by systemd to device and inode of the journal's stream (systemd.exec(5)). Child processes inherit the variable
even if their standard error is a file."""


class TextFormatter(logging.Formatter):
    """Formats an event as one line: `2026-01-31 07:20:04.512+00:00 INFO headrace.loader.run: load_started …`; the trace
    of an exception follows in further lines."""

    def __init__(self) -> None:
        super().__init__(TEXT)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802  (overrides logging)
        return _time(record, " ")


class JournalFormatter(logging.Formatter):
    """Formats an event for systemd's journal: `<6>INFO headrace.loader.run: load_started …`. The journal takes each
    line for an entry, so each line of a trace has the priority."""

    def __init__(self) -> None:
        super().__init__(JOURNAL_TEXT)

    def format(self, record: logging.LogRecord) -> str:
        priority = next((one for level, one in JOURNAL_PRIORITIES if record.levelno >= level), DEBUG_PRIORITY)
        return "\n".join(f"<{priority}>{line}" for line in super().format(record).splitlines())


class JsonFormatter(logging.Formatter):
    """Formats an event as one line with a JSON object: `time`, `level`, `logger`, `message`, and `trace` for an
    exception."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": _time(record, "T"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def configure_logging(environment: Mapping[str, str] = os.environ) -> None:
    """Sends the log to standard error, with the format and level that environment variables set; ignores invalid
    values. Does nothing if the root logger already has a handler."""
    variables = log_variables(environment)
    handler = logging.StreamHandler(sys.stderr)
    text = JournalFormatter() if _is_journal(environment) else TextFormatter()
    handler.setFormatter(JsonFormatter() if variables.get(FORMAT_VARIABLE) == "json" else text)
    logging.basicConfig(level=variables.get(LEVEL_VARIABLE, LOG_DEFAULTS[LEVEL_VARIABLE]), handlers=[handler])


def log_variables(environment: Mapping[str, str] = os.environ) -> Mapping[str, str]:
    """Returns the environment variables that configure the log (its level and format) and have valid values."""
    level, form = environment.get(LEVEL_VARIABLE, "").upper(), environment.get(FORMAT_VARIABLE, "").lower()
    valid = {LEVEL_VARIABLE: level} if level in logging.getLevelNamesMapping() else {}
    return {**valid, FORMAT_VARIABLE: form} if form in FORMATS else valid


def _time(record: logging.LogRecord, separator: str) -> str:
    return datetime.fromtimestamp(record.created).astimezone().isoformat(separator, timespec="milliseconds")


def error_prefix(environment: Mapping[str, str] = os.environ) -> str:
    """Returns the prefix of an error message on standard error: the priority in systemd's journal, elsewhere ""."""
    return "<3>" if _is_journal(environment) else ""


def _is_journal(environment: Mapping[str, str]) -> bool:
    try:
        stream = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):  # closed, or replaced by an object without a descriptor
        return False
    return environment.get(JOURNAL_VARIABLE) == f"{stream.st_dev}:{stream.st_ino}"
