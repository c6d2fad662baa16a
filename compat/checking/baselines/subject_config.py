"""What a registry has configured for a subject, as it holds for a registration of a schema alone.

A registration goes to the subject that an alias stands for, and what is configured for that one holds. Metadata that it
does not bring is the latest version's, laid over the configured default and under the configured override, so that a
compatibility group and reserved names are known beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.compat import CompatibilityLevel, InvalidLevel, parse_level
from headrace.compat.checking.baselines.base import LevelChoice
from headrace.compat.subject_policy import SubjectPolicy
from headrace.registry.errors import ServiceError

LOGICAL: Final = "LOGICAL"
POLICIES: Final = ("STRICT", "LENIENT", LOGICAL)
RESERVED_PROPERTY: Final = "confluent:reserved"


class UnsupportedConfig(Exception):
    """The registry asks for what this check does not know."""


@dataclass(frozen=True, slots=True)
class SubjectConfig:
    """`requested` is the subject as files name it, `target` the one that a registration goes to. `default_properties` and `override_properties`
    are metadata properties that are laid under and over those of a version; `adds_tags_or_rules` says that tags or rules are
    added too."""

    requested: str
    target: str
    level: CompatibilityLevel
    level_origin: str
    is_logical: bool = False
    validates_fields: bool = False
    group: str = ""
    default_properties: Mapping[str, str] = field(default_factory=dict)
    override_properties: Mapping[str, str] = field(default_factory=dict)
    adds_tags_or_rules: bool = False

    def needs_all_versions(self, choice: LevelChoice) -> bool:
        """Whether the latest version is not enough: of a group it may be an earlier one."""
        return bool(self.group) or choice.is_transitive(self.level)

    def metadata(self, latest: Mapping[str, str]) -> Mapping[str, str]:
        """The properties of a version that is registered without any, after one with these."""
        return {**self.default_properties, **latest, **self.override_properties}

    def terms(self, latest: Mapping[str, str]) -> SubjectPolicy:
        """What is asked of the version after one with these properties."""
        if not self.validates_fields:
            return SubjectPolicy(self.is_logical)
        reserved = _reserved(self.metadata(latest))
        return SubjectPolicy(
            self.is_logical, reserved, tuple(name for name in _reserved(latest) if name not in reserved)
        )

    def notes(self, latest: Mapping[str, str]) -> tuple[str, ...]:
        """What is to be told of it."""
        notes = []
        if self.target != self.requested:
            notes.append(f"{self.requested} is an alias of {self.target}")
        if self.group:
            value = self.metadata(latest).get(self.group)
            which = f"{self.group} {value!r}" if value is not None else f"no {self.group}"
            notes.append(f"compared with versions of {which} only, the group of a schema registered without metadata")
        return tuple(notes)


def alias_target(subject: str, config: Mapping[str, Any]) -> str:
    """The subject that a registration goes to: the alias, in the same context unless it says another; one step only."""
    alias = str(config.get("alias") or "")
    subject = plain_subject(subject)
    if not alias:
        return subject
    context = subject[: subject.find(":", 1) + 1] if subject.startswith(":.") and ":" in subject[1:] else ""
    return plain_subject(alias if alias.startswith(":.") else context + alias)


def plain_subject(subject: str) -> str:
    """The one name of a subject: the default context may be named too."""
    return subject.removeprefix(":.:")


def parse_subject_config(
    requested: str, target: str, config: Mapping[str, Any], default: CompatibilityLevel
) -> SubjectConfig:
    """
    Args:
        config: what holds for the target.
        default: the registry's own level.

    Raises:
        UnsupportedConfig: the policy is none that this check knows.
        ServiceError: the answer is none of a registry.
    """
    level = level_of(config)
    policy = str(config.get("compatibilityPolicy") or "STRICT").upper()
    if policy not in POLICIES:
        raise UnsupportedConfig(
            f"the compatibilityPolicy of {target} is {policy}, which this release does not know (it knows "
            f"{', '.join(POLICIES)}), so that it cannot tell what the registry would answer"
        )
    default_properties, override_properties = (config.get(key) or {} for key in ("defaultMetadata", "overrideMetadata"))
    adds_tags = any(layer.get("tags") or layer.get("sensitive") for layer in (default_properties, override_properties))
    return SubjectConfig(
        requested,
        target,
        level,
        "the registry's" if level is default else "the subject's own",
        policy == LOGICAL,
        bool(config.get("validateFields")),
        str(config.get("compatibilityGroup") or ""),
        _properties(default_properties),
        _properties(override_properties),
        adds_tags or bool(config.get("defaultRuleSet") or config.get("overrideRuleSet")),
    )


def _properties(metadata: Mapping[str, Any]) -> Mapping[str, str]:
    return {str(name): str(value) for name, value in (metadata.get("properties") or {}).items()}


def level_of(config: Mapping[str, Any]) -> CompatibilityLevel:
    """
    Raises:
        ServiceError: it is none.
    """
    try:
        return parse_level(str(config["compatibilityLevel"]))
    except InvalidLevel as error:
        raise ServiceError(f"the registry's level: {error}", status=200) from None


def _reserved(metadata: Mapping[str, str]) -> tuple[str, ...]:
    names = (name.strip() for name in metadata.get(RESERVED_PROPERTY, "").split(","))
    return tuple(dict.fromkeys(name for name in names if name))
