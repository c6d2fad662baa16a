"""Rules beyond compatibility, each asked for by name: the rows, and what they find as problems of a check.

A lint is opt-in since what it asks is a matter of taste, of the readers at hand or of what the data is for. Those
whose breach makes data wrong or unreadable are errors, the others warnings, unless asked otherwise. `DEFAULT_LINTS` has
what is looked at unasked, as a warning: what nobody wants, and Avro's own check does not see.
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
                "Every named type and every field says what it means.",
                "Whoever reads the data later has nothing but the schema to go by.",
                Severity.WARNING,
                schema_lints.documentation,
            ),
            Lint(
                "NAMING",
                "Types are in CapitalWords, namespaces in lower case, symbols in UPPER_CASE, fields all in snake_case "
                "or all in camelCase.",
                "Names end in generated classes, columns and queries, where each exception must be remembered.",
                Severity.WARNING,
                schema_lints.naming,
            ),
            Lint(
                "ENUM_WITHOUT_DEFAULT",
                "Every enum has a default.",
                "Readers meet symbols that were added later; without a default they fail on the whole record.",
                Severity.WARNING,
                schema_lints.enum_default,
            ),
            Lint(
                "OPTIONAL_WITHOUT_DEFAULT",
                "A field that may be null has a default.",
                "It looks as if it could be left out or removed, but a reader needs the default for that.",
                Severity.WARNING,
                schema_lints.optional_default,
            ),
            Lint(
                "EMPTY_ARRAY_DEFAULT",
                "A field that may be an array or something else has no empty array as its default.",
                "Avro Java's check promises that such a field can be filled, and its reader (1.12) fails at it.",
                Severity.ERROR,
                schema_lints.empty_array_default,
            ),
            Lint(
                "LOGICAL_TYPE_IGNORED",
                "A logical type of Avro stands in the type, is spelled as Avro has it and has what it needs.",
                "Avro ignores any other without a word, and everybody reads the plain number or bytes below.",
                Severity.WARNING,
                schema_lints.ignored_logical_type,
            ),
            Lint(
                "LOGICAL_TYPE_CHANGED",
                "A field keeps its logical type.",
                "Avro compares the types below only, so data still reads, as another time, date or number.",
                Severity.ERROR,
                for_each_pair(change_lints.logical_type),
            ),
            Lint(
                "DECIMAL_CHANGED",
                "A decimal keeps its scale, and its precision does not shrink.",
                "Avro writes the digits without the scale: with another one, 12.34 is read as 1.234.",
                Severity.ERROR,
                for_each_pair(change_lints.decimal),
            ),
            Lint(
                "NAMESPACE_CHANGED",
                "A type keeps its namespace, or has an alias for its earlier full name.",
                "Avro Java and the registry compare short names only; readers in other languages take full names.",
                Severity.WARNING,
                for_each_pair(change_lints.namespace),
            ),
            Lint(
                "UNION_ORDER_CHANGED",
                "The branches of a union keep their order.",
                "Some readers number the branches, and until Avro 1.12 a default belongs to the first one.",
                Severity.WARNING,
                for_each_pair(change_lints.union_order),
            ),
            Lint(
                "FIELD_ORDER_CHANGED",
                "The fields of a record keep their order.",
                "Avro reads by name, but tables, generated constructors and CSV take fields by their place.",
                Severity.WARNING,
                for_each_pair(change_lints.field_order),
            ),
            Lint(
                "ALIAS_CHAIN_BROKEN",
                "What was renamed again keeps all its earlier names as aliases.",
                "An alias is not followed through versions: of a renamed to b renamed to c, c needs both names.",
                Severity.ERROR,
                for_each_pair(change_lints.alias_chain),
            ),
            Lint(
                "KEY_FIELD_ADDED",
                "The schema of a key (a subject that ends in -key) gets no new fields.",
                "Equal keys must be equal bytes: partitioning, joins and compaction compare these.",
                Severity.ERROR,
                change_lints.key_default,
            ),
            Lint(
                "HIVE_COLUMN",
                "Every field can be a column of a Hive table.",
                "One field that Hive has no column for makes the whole table unusable.",
                Severity.ERROR,
                schema_lints.hive_column,
            ),
            Lint(
                "HIVE_RESERVED_WORD",
                "No field is called by a word that Hive or Spark reserve.",
                "Such a column works only between back-ticks, in every query of everybody.",
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
    words: Sequence[str], given: Mapping[str, EnabledLint] = MappingProxyType({})
) -> tuple[EnabledLint, ...]:
    """The lints that words ask for: `NAME`, `NAME=error`, `NAME=warning`, `NAME=off`, or `all`; later words go before.

    Case does not matter, nor whether parts are joined by `-` or `_`. Those `given` are there before any word.

    Raises:
        UnknownLint: a word means none.
    """
    chosen = dict(given)
    for word in words:
        name, equals, level = word.strip().partition("=")
        key = name.strip().upper().replace("-", "_")
        named = list(LINTS.values()) if key == ALL.upper() else [LINTS[key]] if key in LINTS else []
        if not named:
            raise UnknownLint(word, (ALL, *LINTS))
        severity = level.strip().lower()
        if equals and severity not in (*Severity, "off"):
            raise UnknownLint(word, [f"{name}={value}" for value in (*Severity, "off")])
        for lint in named:
            chosen.pop(lint.id, None)
            if severity != "off":
                chosen[lint.id] = EnabledLint(lint, Severity(severity) if severity else lint.severity)
    return tuple(chosen[name] for name in LINTS if name in chosen)


def lint_problems(chosen: Sequence[EnabledLint], linted: LintInput) -> tuple[Problem, ...]:
    """What the lints have to say, lint by lint, in the order of the text."""
    return tuple(_problem(row, remark, linted) for row in chosen for remark in row.lint.check(linted))


def _problem(row: EnabledLint, remark: LintFinding, linted: LintInput) -> Problem:
    position, earlier = remark.position, remark.earlier
    return Problem(
        rule=row.lint.id,
        severity=row.severity,
        direction=None,
        version=earlier.version if earlier else 0,
        version_name=earlier.name if earlier else "",
        pointer=position.pointer,
        line=position.line,
        column=position.column,
        sentence=remark.sentence,
        fix=remark.fix,
        field=describe_field(remark.path),
        reader=remark.new,
        writer=remark.old,
        excerpt=source_excerpt(linted.candidate.text, position),
    )
