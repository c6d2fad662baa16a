"""Catalogue of all rules and lints with their descriptions, as shown by `compat explain` and in the docs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from headrace.compat.finding import LOGICAL_POLICY, RESERVED_FIELD, SCHEMA_DELETED, Severity
from headrace.compat.lints import LINTS
from headrace.compat.rules import RULES


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """Description of a rule or, if `is_lint`, of a lint: `purpose` states its requirement, and `rationale` the
    reason."""

    id: str
    severity: Severity
    purpose: str
    rationale: str
    is_lint: bool


CATALOGUE: Mapping[str, CatalogueEntry] = MappingProxyType(
    {
        row.id: row
        for row in (
            *(
                CatalogueEntry(rule.id.value, rule.severity, rule.purpose, rule.rationale, False)
                for rule in RULES.values()
            ),
            CatalogueEntry(
                SCHEMA_DELETED,
                Severity.ERROR,
                "A schema of the baseline still exists, or another file has replaced it.",
                "Its data and readers remain when the file is deleted, and the subject's next version is still "
                "compared with the deleted schema.",
                False,
            ),
            CatalogueEntry(
                LOGICAL_POLICY,
                Severity.ERROR,
                "If the subject's compatibilityPolicy is LOGICAL, a field keeps its logical type, and a decimal keeps "
                "its scale and at least its precision.",
                "Avro compares only the underlying types, so data is read without an error, as another time, date or "
                "number.",
                False,
            ),
            CatalogueEntry(
                RESERVED_FIELD,
                Severity.ERROR,
                "If the subject has validateFields, no top-level field has a name that the metadata reserves, and "
                "reserved names stay reserved.",
                "A reserved name has another use, often a column that the loader adds.",
                False,
            ),
            *(CatalogueEntry(lint.id, lint.severity, lint.purpose, lint.rationale, True) for lint in LINTS.values()),
        )
    }
)


def find_catalogue_entry(word: str) -> CatalogueEntry | None:
    """Returns the entry of a rule or lint by its name, or None for an unknown name. Case does not matter, and the words
    of a name may be joined by `-` or `_`."""
    return CATALOGUE.get(word.strip().upper().replace("-", "_"))
