"""Finds log records by logger, level and the values in the message, so that tests do not depend on its wording."""

from __future__ import annotations

import logging

import pytest


def logged(
    caplog: pytest.LogCaptureFixture, logger: str, *values: object, level: int = logging.WARNING
) -> list[logging.LogRecord]:
    """Returns the records of one logger, in order.

    Args:
        caplog: the fixture of the test.
        logger: the logger's name without "headrace.".
        values: the message contains each of them, in this order.
        level: the lowest level.
    """
    return [
        record
        for record in caplog.records
        if record.name == f"headrace.{logger}"
        and record.levelno >= level
        and _has_in_order(record.getMessage(), [str(value) for value in values])
    ]


def _has_in_order(text: str, values: list[str]) -> bool:
    position = 0
    for value in values:
        found = text.find(value, position)
        if found < 0:
            return False
        position = found + len(value)
    return True
