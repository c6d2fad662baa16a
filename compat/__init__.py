"""Schema compatibility: can a reader schema read the data of a writer schema? Rules, levels, findings and reports.

`levels` selects the versions to compare, `resolution` compares one pair by the `rules`, and `formats` render the
findings. `checking` implements the command `compat check` and holds all I/O of this package.
"""

from headrace.compat.confluent import confluent_messages
from headrace.compat.errors import ComparisonTooLarge, CompatError, InvalidLevel
from headrace.compat.finding import (
    LEVELS,
    CompatibilityLevel,
    Direction,
    Finding,
    LevelRule,
    Report,
    Severity,
    VersionedSchema,
    parse_level,
)
from headrace.compat.incompatibility import Incompatibility, IncompatibilityType
from headrace.compat.levels import check_level
from headrace.compat.report import json_report, text_report
from headrace.compat.resolution import check_reader_writer
from headrace.compat.rules import RULES, CompatibilityRule

__all__ = [
    "LEVELS",
    "RULES",
    "ComparisonTooLarge",
    "CompatError",
    "CompatibilityLevel",
    "CompatibilityRule",
    "Direction",
    "Finding",
    "Incompatibility",
    "IncompatibilityType",
    "InvalidLevel",
    "LevelRule",
    "Report",
    "Severity",
    "VersionedSchema",
    "check_level",
    "check_reader_writer",
    "confluent_messages",
    "json_report",
    "parse_level",
    "text_report",
]
