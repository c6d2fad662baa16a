"""Renders a report in the wording of the Confluent Schema Registry, which clients display and sometimes parse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from headrace.avro_schema import canonical_text
from headrace.compat.finding import Direction, Finding, Report
from headrace.compat.incompatibility import IncompatibilityType

OLD_SCHEMA_CHARS_MAX = 10_240
"""The registry truncates the earlier schema in its messages to this length."""

_DESCRIPTIONS: Mapping[IncompatibilityType, str] = MappingProxyType(
    {
        IncompatibilityType.READER_FIELD_MISSING_DEFAULT_VALUE: (
            "The field '{message}' at path '{location}' in the {reader} schema has no default value and is missing in "
            "the {writer} schema"
        ),
        IncompatibilityType.TYPE_MISMATCH: (
            "The type (path '{location}') of a field in the {reader} schema does not match with the {writer} schema"
        ),
        IncompatibilityType.NAME_MISMATCH: "The name of the schema has changed (path '{location}')",
        IncompatibilityType.MISSING_ENUM_SYMBOLS: (
            "The {reader} schema is missing enum symbols '{message}' at path '{location}' in the {writer} schema"
        ),
        IncompatibilityType.FIXED_SIZE_MISMATCH: (
            "The size of FIXED type field at path '{location}' in the {reader} schema does not match with the "
            "{writer} schema"
        ),
        IncompatibilityType.MISSING_UNION_BRANCH: (
            "The {reader} schema is missing a type inside a union field at path '{location}' in the {writer} schema"
        ),
    }
)


def confluent_messages(
    report: Report, *, validate_fields: bool = False, extra_messages: Sequence[str] = ()
) -> list[str]:
    """Returns the messages of a verbose compatibility response and of a refused registration; empty if the report is
    compatible and `extra_messages` is empty.

    The messages of the report cover the newest incompatible version only. As in the Confluent registry, the version and
    text of that schema are omitted if the level requires both directions and all problems are forward ones.

    Args:
        report: result of the check.
        validate_fields: whether reserved field names were checked; the last message contains it.
        extra_messages: messages about problems that are not in the report, such as reserved field names; they come
            first.
    """
    messages = [*extra_messages, *_messages(report)]
    if messages:
        messages.append(f"{{validateFields: '{str(validate_fields).lower()}', compatibility: '{report.level.value}'}}")
    return messages


def _messages(report: Report) -> list[str]:
    if report.is_compatible:
        return []
    version = report.findings[0].version
    findings = [finding for finding in report.findings if finding.version == version]
    messages = [_message(finding) for finding in findings]
    requires_both_directions = report.level.value.startswith("FULL")
    if not requires_both_directions or any(finding.direction is Direction.BACKWARD for finding in findings):
        (earlier,) = (compared for compared in report.compared if compared.version == version)
        messages.append(f"{{oldSchemaVersion: {version}}}")
        messages.append(f"{{oldSchema: '{canonical_text(earlier.schema)[:OLD_SCHEMA_CHARS_MAX]}'}}")
    return messages


def _message(finding: Finding) -> str:
    problem = finding.incompatibility
    if finding.rule is IncompatibilityType.AMBIGUOUS_FIELD_ALIAS:
        return f"Unexpected exception during compatibility check: {problem.message}"
    reader, writer = ("new", "old") if finding.direction is Direction.BACKWARD else ("old", "new")
    description = _DESCRIPTIONS[finding.rule].format(
        message=problem.message, location=problem.location, reader=reader, writer=writer
    )
    return f"{{errorType:'{finding.rule.value}', description:'{description}', additionalInfo:'{problem.message}'}}"
