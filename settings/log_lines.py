"""How the lines of the log look, which go to standard error: as text, or each as one JSON object.

Said by the environment, since there is a log before the settings are read: `HEADRACE_LOG_LEVEL` (a level of Python's
logging, INFO by default) and `HEADRACE_LOG_FORMAT` (`text`, or `json` for what collects logs). Times have their zone.
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


class TextLines(logging.Formatter):
    """`2026-01-31 07:20:04.512+00:00 INFO headrace.loader.run: load_started …`"""

    def __init__(self) -> None:
        super().__init__(TEXT)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802  (of logging)
        return _time(record, " ")


class JsonLines(logging.Formatter):
    """One object a line: `time`, `level`, `logger`, `message`, and `trace` where something was raised."""

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
    """Sends the log to standard error as the environment says; what it says amiss is as if it said nothing."""
    said = log_variables(environment)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if said.get(FORMAT_VARIABLE) == "json" else TextLines())
    logging.basicConfig(level=said.get(LEVEL_VARIABLE, LOG_DEFAULTS[LEVEL_VARIABLE]), handlers=[handler])


def log_variables(environment: Mapping[str, str] = os.environ) -> Mapping[str, str]:
    """What the environment says of the log, as far as it makes sense."""
    level, form = environment.get(LEVEL_VARIABLE, "").upper(), environment.get(FORMAT_VARIABLE, "").lower()
    said = {LEVEL_VARIABLE: level} if level in logging.getLevelNamesMapping() else {}
    return {**said, FORMAT_VARIABLE: form} if form in FORMATS else said


def _time(record: logging.LogRecord, separator: str) -> str:
    return datetime.fromtimestamp(record.created).astimezone().isoformat(separator, timespec="milliseconds")
