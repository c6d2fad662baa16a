"""What holds in a scope, from what is set there and in the scopes around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from headrace.registry.domain import ConfigEntry, Mode

INHERITED: Final = (
    "normalize",
    "validate_fields",
    "validate_new_schemas",
    "validate_rules",
    "compatibility_policy",
    "compatibility_group",
)
"""Keys that an entry takes from the ones around it. The others are those of the nearest entry, so that an entry which
says nothing about the level has the default one, as in the Confluent Schema Registry."""


def effective_config(entries: Sequence[ConfigEntry | None], default_level: str) -> ConfigEntry:
    """What is configured in a scope.

    Args:
        entries: those of the scope and the scopes around it, the nearest first.
        default_level: where the nearest entry has none.
    """
    present = [entry for entry in entries if entry is not None]
    nearest = present[0] if present else ConfigEntry()
    inherited = {
        key: next((value for entry in present if (value := getattr(entry, key)) is not None), None) for key in INHERITED
    }
    # An alias stands for one subject, so only a subject's own entry can have one.
    own = entries[0] or ConfigEntry()
    return replace(
        nearest,
        **inherited,
        compatibility=nearest.compatibility or default_level,
        alias=own.alias,
        alias_for_deks=own.alias_for_deks,
    )


def effective_mode(modes: Sequence[Mode | None]) -> Mode:
    """The mode of a scope, from its own and those of the scopes around it, the nearest first."""
    if Mode.READONLY_OVERRIDE in modes[1:]:
        return Mode.READONLY_OVERRIDE
    return next((mode for mode in modes if mode is not None), Mode.READWRITE)
