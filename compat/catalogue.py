"""Everything that can be found, rules and lints alike, as it is described to people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from headrace.compat.finding import SCHEMA_DELETED, Severity
from headrace.compat.lints import LINTS
from headrace.compat.rules import RULES


@dataclass(frozen=True, slots=True)
class Described:
    """`is_lint` when it has to be asked for."""

    id: str
    severity: Severity
    purpose: str
    why: str
    is_lint: bool


CATALOGUE: Mapping[str, Described] = MappingProxyType(
    {
        row.id: row
        for row in (
            *(Described(rule.id.value, rule.severity, rule.purpose, rule.why, False) for rule in RULES.values()),
            Described(
                SCHEMA_DELETED,
                Severity.ERROR,
                "A schema that the baseline has is still there, or another file has its subject.",
                "Its data and readers stay when its file goes, and the subject's next version is held to what nobody "
                "sees any more.",
                False,
            ),
            *(Described(lint.id, lint.severity, lint.purpose, lint.why, True) for lint in LINTS.values()),
        )
    }
)


def find_described(word: str) -> Described | None:
    """The rule or lint that a word means, in any case, its parts joined by `-` or `_`."""
    return CATALOGUE.get(word.strip().upper().replace("-", "_"))
