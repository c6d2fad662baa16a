"""Lints: rules beyond compatibility that are enabled by name. Holds the table of lints and converts their findings.

Lints are opt-in, because their value depends on taste, on the readers in use or on the purpose of the data. A lint is
an error if a violation makes data wrong or unreadable, else a warning, unless configured otherwise. `DEFAULT_LINTS` run
as warnings without being enabled: they detect changes that are always unwanted and that Avro's check ignores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from headrace.compat.check_result import Problem, source_excerpt
from headrace.compat.describe import describe_field
from headrace.compat.errors import UnknownLint
from headrace.compat.finding import Severity
from headrace.compat.lints import change_lints, schema_lints
from headrace.compat.lints.change_lints import for_each_pair
from headrace.compat.lints.model import EnabledLint, Lint, LintFinding, LintInput

__all__ = ["ALL", "LINTS", "EnabledLint", "Lint", "LintFinding", "LintInput", "lint_problems", "parse_lints"]

ALL = "all"

LINTS: Mapping[str, Lint] = MappingProxyType(
    {
        lint.id: lint
        for lint in (
            Lint(
                "DOC_MISSING",
                "Every named type and every field has documentation.",
                "Later readers of the data have only the schema to understand it.",
                Severity.WARNING,
                schema_lints.documentation,
            ),
            Lint(
                "NAMING",
                "Types are in CapitalWords, namespaces in lower case, symbols in UPPER_CASE, fields all in snake_case "
                "or all in camelCase.",
                "Names appear in generated classes, columns and queries, where users must remember every exception.",
                Severity.WARNING,
                schema_lints.naming,
            ),
            Lint(
                "ENUM_WITHOUT_DEFAULT",
                "Every enum has a default.",
                "Readers receive symbols that were added later; without a default they fail on the whole record.",
                Severity.WARNING,
                schema_lints.enum_default,
            ),
            Lint(
                "OPTIONAL_WITHOUT_DEFAULT",
                "A field that may be null has a default.",
                "Such a field seems optional, but can be omitted or removed only if it has a default.",
                Severity.WARNING,
                schema_lints.optional_default,
            ),
            Lint(
                "EMPTY_ARRAY_DEFAULT",
                "A field whose union contains an array does not have an empty array as its default.",
                "Avro Java's check accepts such a default, but its reader (1.12) fails on it.",
                Severity.ERROR,
                schema_lints.empty_array_default,
            ),
            Lint(
                "LOGICAL_TYPE_IGNORED",
                "A logical type is part of the type, is spelled correctly and has all its attributes.",
                "Avro silently ignores an invalid logical type, and readers get the underlying number or bytes.",
                Severity.WARNING,
                schema_lints.ignored_logical_type,
            ),
            Lint(
                "LOGICAL_TYPE_CHANGED",
                "A field keeps its logical type.",
                "Avro compares only the underlying types, so data is still read, as another time, date or number.",
                Severity.ERROR,
                for_each_pair(change_lints.logical_type),
            ),
            Lint(
                "DECIMAL_CHANGED",
                "A decimal keeps its scale, and its precision does not shrink.",
                "Avro writes the digits without the scale: with another scale, 12.34 is read as 1.234.",
                Severity.ERROR,
                for_each_pair(change_lints.decimal),
            ),
            Lint(
                "NAMESPACE_CHANGED",
                "A type keeps its namespace, or has an alias for its earlier full name.",
                "Avro Java and the registry compare short names only; readers in other languages compare full names.",
                Severity.WARNING,
                for_each_pair(change_lints.namespace),
            ),
            Lint(
                "UNION_ORDER_CHANGED",
                "The branches of a union keep their order.",
                "Some readers number the branches, and before Avro 1.12 a default had to match the first branch.",
                Severity.WARNING,
                for_each_pair(change_lints.union_order),
            ),
            Lint(
                "FIELD_ORDER_CHANGED",
                "The fields of a record keep their order.",
                "Avro reads by name, but tables, generated constructors and CSV use the position of a field.",
                Severity.WARNING,
                for_each_pair(change_lints.field_order),
            ),
            Lint(
                "ALIAS_CHAIN_BROKEN",
                "A field or type that was renamed several times keeps all earlier names as aliases.",
                "Aliases are not followed across versions: if a was renamed to b and then to c, c needs both aliases.",
                Severity.ERROR,
                for_each_pair(change_lints.alias_chain),
            ),
            Lint(
                "KEY_FIELD_ADDED",
                "The schema of a key (a subject that ends in -key) gets no new fields.",
                "Equal keys must be equal bytes: partitioning, joins and compaction compare the bytes.",
                Severity.ERROR,
                change_lints.key_default,
            ),
            Lint(
                "HIVE_COLUMN",
                "Every field can be a column of a Hive table.",
                "One field without a Hive column type makes the whole table unusable.",
                Severity.ERROR,
                schema_lints.hive_column,
            ),
            Lint(
                "HIVE_RESERVED_WORD",
                "No field name is a reserved word of Hive or Spark.",
                "Such a column must be quoted with back-ticks in every query.",
                Severity.WARNING,
                schema_lints.hive_reserved_word,
            ),
        )
    }
)


DEFAULT_LINTS: Mapping[str, EnabledLint] = MappingProxyType(
    {name: EnabledLint(LINTS[name], Severity.WARNING, is_explicit=False) for name in ("DECIMAL_CHANGED",)}
)


def parse_lints(
    words: Sequence[str], enabled: Mapping[str, EnabledLint] = MappingProxyType({})
) -> tuple[EnabledLint, ...]:
    """Returns the enabled lints. An option is `NAME`, `NAME=error`, `NAME=warning`, `NAME=off`, or `all` in place of a
    name; later options override earlier ones.

    Args:
        words: the options. Case does not matter, and the words of a name may be joined by `-` or `_`.
        enabled: lints that are enabled before the first option.

    Raises:
        UnknownLint: an option is not a lint, or its severity is invalid.
    """
    chosen = dict(enabled)
    for word in words:
        name, equals, level = word.strip().partition("=")
        key = name.strip().upper().replace("-", "_")
        lints = list(LINTS.values()) if key == ALL.upper() else [LINTS[key]] if key in LINTS else []
        if not lints:
            raise UnknownLint(word, (ALL, *LINTS))
        severity = level.strip().lower()
        if equals and severity not in (*Severity, "off"):
            raise UnknownLint(word, [f"{name}={value}" for value in (*Severity, "off")])
        for lint in lints:
            chosen.pop(lint.id, None)
            if severity != "off":
                chosen[lint.id] = EnabledLint(lint, Severity(severity) if severity else lint.severity)
    return tuple(chosen[name] for name in LINTS if name in chosen)


def lint_problems(chosen: Sequence[EnabledLint], linted: LintInput) -> tuple[Problem, ...]:
    """Returns the problems that lints find, by lint and then in the order in which the lint yields them.

    Args:
        chosen: the lints to run.
        linted: the new schema and its earlier versions.
    """
    return tuple(_problem(row, finding, linted) for row in chosen for finding in row.lint.check(linted))


def _problem(row: EnabledLint, finding: LintFinding, linted: LintInput) -> Problem:
    position, earlier = finding.position, finding.earlier
    return Problem(
        rule=row.lint.id,
        severity=row.severity,
        direction=None,
        version=earlier.version if earlier else 0,
        version_name=earlier.name if earlier else "",
        pointer=position.pointer,
        line=position.line,
        column=position.column,
        sentence=finding.sentence,
        fix=finding.fix,
        field=describe_field(finding.path),
        reader=finding.new,
        writer=finding.old,
        excerpt=source_excerpt(linted.candidate.text, position),
    )
