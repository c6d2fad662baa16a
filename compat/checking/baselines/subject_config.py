"""The registry's configuration of a subject, as it applies to registering a schema without metadata.

A registration goes to the target of a subject alias, and the target's configuration applies. A schema without metadata
gets the metadata of the latest version, merged with the configured default (below) and override (above). Its
compatibility group and reserved names are therefore known in advance.
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
    """The subject's configuration has a value that this check does not know."""


@dataclass(frozen=True, slots=True)
class SubjectConfig:
    """Effective configuration of a subject.

    `requested` is the subject derived from the file, `target` the subject that a registration goes to. `group` is the
    metadata property that divides the versions into compatibility groups, or "". The metadata of a version is merged
    from `default_properties`, its own properties and `override_properties`; later ones take precedence.
    `adds_tags_or_rules`: the configuration also adds tags or rules.
    """

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
        """Whether the check needs all versions of the subject, not only the latest: the level is transitive, or the
        subject has compatibility groups, in which the compared version may be an earlier one.

        Args:
            choice: the level that the user requested.
        """
        return bool(self.group) or choice.is_transitive(self.level)

    def metadata(self, latest: Mapping[str, str]) -> Mapping[str, str]:
        """Returns the metadata properties that the registry gives to the next version, if it is registered without
        metadata.

        Args:
            latest: metadata properties of the latest version.
        """
        return {**self.default_properties, **latest, **self.override_properties}

    def policy(self, latest: Mapping[str, str]) -> SubjectPolicy:
        """Returns the requirements for the subject's next version in addition to its compatibility level: the rules for
        logical types and the reserved field names.

        Args:
            latest: metadata properties of the subject's latest version, which may reserve names.
        """
        if not self.validates_fields:
            return SubjectPolicy(self.is_logical)
        reserved = _reserved(self.metadata(latest))
        return SubjectPolicy(
            self.is_logical, reserved, tuple(name for name in _reserved(latest) if name not in reserved)
        )

    def notes(self, latest: Mapping[str, str]) -> tuple[str, ...]:
        """Returns notes for the user: that the subject is an alias, and with which compatibility group a schema is
        compared; empty if neither applies.

        Args:
            latest: metadata properties of the latest version.
        """
        notes = []
        if self.target != self.requested:
            notes.append(f"{self.requested} is an alias of {self.target}")
        if self.group:
            value = self.metadata(latest).get(self.group)
            group = f"{self.group} = {value!r}" if value is not None else f"no {self.group}"
            notes.append(
                f"compared only with versions whose metadata has {group}: a schema registered without metadata belongs "
                "to this compatibility group"
            )
        return tuple(notes)


def alias_target(subject: str, config: Mapping[str, Any]) -> str:
    """Returns the subject that a registration goes to: the alias in the configuration of `subject`, else the subject
    itself. An alias without a context is in the subject's context.

    An alias of the target is not followed.
    """
    alias = str(config.get("alias") or "")
    subject = plain_subject(subject)
    if not alias:
        return subject
    context = subject[: subject.find(":", 1) + 1] if subject.startswith(":.") and ":" in subject[1:] else ""
    return plain_subject(alias if alias.startswith(":.") else context + alias)


def plain_subject(subject: str) -> str:
    """Returns the canonical name of a subject, without the prefix of the default context."""
    return subject.removeprefix(":.:")


def parse_subject_config(requested: str, target: str, config: Mapping[str, Any]) -> SubjectConfig:
    """Parses a subject's configuration, as the registry returned it.

    Args:
        requested: the subject derived from the schema file.
        target: the subject that a registration goes to, which differs from `requested` if that is an alias.
        config: effective configuration of the target.

    Raises:
        UnsupportedConfig: the value of `compatibilityPolicy` is unknown.
        ServiceError: the level of the configuration is invalid.
        KeyError: the configuration has no level.
    """
    level = level_of(config)
    policy = str(config.get("compatibilityPolicy") or "STRICT").upper()
    if policy not in POLICIES:
        raise UnsupportedConfig(
            f"the compatibilityPolicy of {target} is {policy}, which this release does not support (supported: "
            f"{', '.join(POLICIES)}); upgrade headrace or change the policy"
        )
    default_properties, override_properties = (config.get(key) or {} for key in ("defaultMetadata", "overrideMetadata"))
    adds_tags = any(layer.get("tags") or layer.get("sensitive") for layer in (default_properties, override_properties))
    return SubjectConfig(
        requested,
        target,
        level,
        # The effective configuration does not state whether a value is the subject's own or inherited.
        "the registry's for this subject",
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
    """Returns the compatibility level in a configuration that the registry returned.

    Raises:
        ServiceError: the level is invalid.
        KeyError: the configuration has no level.
    """
    try:
        return parse_level(str(config["compatibilityLevel"]))
    except InvalidLevel as error:
        raise ServiceError(f"the registry's response has an invalid compatibilityLevel: {error}", status=200) from None


def _reserved(metadata: Mapping[str, str]) -> tuple[str, ...]:
    names = (name.strip() for name in metadata.get(RESERVED_PROPERTY, "").split(","))
    return tuple(dict.fromkeys(name for name in names if name))
