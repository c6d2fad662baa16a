"""Everything that can be found, rules and lints alike, as it is described to people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from headrace.compat.finding import LOGICAL_POLICY, RESERVED_FIELD, SCHEMA_DELETED, Severity
from headrace.compat.lints import LINTS
from headrace.compat.rules import RULES


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """`is_lint` when it has to be asked for."""

    id: str
    severity: Severity
    purpose: str
    why: str
    is_lint: bool


CATALOGUE: Mapping[str, CatalogueEntry] = MappingProxyType(
    {
        row.id: row
        for row in (
            *(CatalogueEntry(rule.id.value, rule.severity, rule.purpose, rule.why, False) for rule in RULES.values()),
            CatalogueEntry(
                SCHEMA_DELETED,
                Severity.ERROR,
                "A schema that the baseline has is still there, or another file has taken its place.",
                "Its data and readers stay when its file goes, and the subject's next version is held to what nobody "
                "sees any more.",
                False,
            ),
            CatalogueEntry(
                LOGICAL_POLICY,
                Severity.ERROR,
                "Where a subject's compatibilityPolicy is LOGICAL, a field keeps its logical type, a decimal its scale "
                "and digits enough.",
                "Avro compares the types below only, so data would still be read, as another time, date or number.",
                False,
            ),
            CatalogueEntry(
                RESERVED_FIELD,
                Severity.ERROR,
                "Where a subject has validateFields, no top-level field has a name that its metadata reserves, and "
                "what is reserved stays so.",
                "Such a name is kept for something else, often a column that whoever loads the data adds.",
                False,
            ),
            *(CatalogueEntry(lint.id, lint.severity, lint.purpose, lint.why, True) for lint in LINTS.values()),
        )
    }
)


def find_catalogue_entry(word: str) -> CatalogueEntry | None:
    """The rule or lint that a word means, in any case, its parts joined by `-` or `_`."""
    return CATALOGUE.get(word.strip().upper().replace("-", "_"))
