"""Rule sets: processing of records that clients run when they write, read or migrate them.

The registry runs no rules. It checks, merges and stores them, and returns them to clients. Rules are part of a schema's
content, like its metadata: schemas with different rules have different ids.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from headrace.registry.errors import InvalidRuleSet

NAME_CHARS_MAX: Final = 64


class RuleKind(StrEnum):
    TRANSFORM = "TRANSFORM"
    CONDITION = "CONDITION"


class RuleMode(StrEnum):
    UPGRADE = "UPGRADE"
    DOWNGRADE = "DOWNGRADE"
    UPDOWN = "UPDOWN"
    WRITE = "WRITE"
    READ = "READ"
    WRITEREAD = "WRITEREAD"


@dataclass(frozen=True, slots=True)
class Rule:
    """A transformation or condition that clients apply to records. `tags` and `params` are sorted. Optional texts are
    None when they are missing or empty.

    `name` and `type` may be empty, as the client sent them, because the error for an empty value differs from that for
    a missing one.
    """

    name: str | None
    doc: str | None = None
    kind: RuleKind = RuleKind.TRANSFORM
    mode: RuleMode = RuleMode.WRITEREAD
    type: str | None = None
    tags: tuple[str, ...] = ()
    params: tuple[tuple[str, str], ...] = ()
    expr: str | None = None
    on_success: str | None = None
    on_failure: str | None = None
    disabled: bool = False

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Rule:
        """A rule from JSON with the API's keys; the types of the values are already checked."""
        return cls(
            values.get("name"),
            values.get("doc") or None,
            RuleKind(values.get("kind") or RuleKind.TRANSFORM),
            RuleMode(values.get("mode") or RuleMode.WRITEREAD),
            values.get("type"),
            tuple(sorted(set(values.get("tags") or ()))),
            tuple(sorted((values.get("params") or {}).items())),
            values.get("expr") or None,
            values.get("onSuccess") or None,
            values.get("onFailure") or None,
            bool(values.get("disabled")),
        )

    def to_json(self) -> dict[str, Any]:
        """JSON with the API's keys in the API's order, without empty values, except that an empty `type` remains;
        `disabled` is always included."""
        values: dict[str, Any] = {
            "name": self.name,
            "doc": self.doc,
            "kind": self.kind.value,
            "mode": self.mode.value,
            "type": self.type,
            "tags": list(self.tags),
            "params": dict(self.params),
            "expr": self.expr,
            "onSuccess": self.on_success,
            "onFailure": self.on_failure,
        }
        present = {key: value for key, value in values.items() if value or (key == "type" and value is not None)}
        return {**present, "disabled": self.disabled}

    def hashed_bytes(self) -> bytes:
        """The bytes of this rule in the input of the hash that is the schema's guid."""
        texts = [self.name, self.doc, self.kind.value, self.mode.value, self.type, *self.tags]
        texts += [text for pair in self.params for text in pair]
        texts += [self.expr, self.on_success, self.on_failure]
        return "".join(text for text in texts if text is not None).encode() + (b"\x01" if self.disabled else b"")


@dataclass(frozen=True, slots=True)
class RuleSet:
    """The rules of a schema in three ordered lists. `enable_at` is the time from which they apply, as the client sent
    it."""

    migration: tuple[Rule, ...] = ()
    domain: tuple[Rule, ...] = ()
    encoding: tuple[Rule, ...] = ()
    enable_at: str | None = None

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> RuleSet:
        """A rule set from JSON with the API's keys; the types of the values are already checked."""
        migration, domain, encoding = (tuple(Rule.of(rule) for rule in values.get(part.key) or ()) for part in PARTS)
        return cls(migration, domain, encoding, values.get("enableAt") or None)

    def to_json(self) -> dict[str, Any]:
        """JSON with the API's keys in the API's order, without empty values."""
        lists = {part.key: [rule.to_json() for rule in part.rules(self)] for part in PARTS}
        return {key: value for key, value in {**lists, "enableAt": self.enable_at}.items() if value}

    def hashed_bytes(self) -> bytes:
        """The bytes of these rules in the input of the hash that is the schema's guid."""
        rules = b"".join(rule.hashed_bytes() for part in PARTS for rule in part.rules(self))
        return rules + (self.enable_at or "").encode()

    def has_type(self, type_name: str) -> bool:
        return any(rule.type == type_name for part in PARTS for rule in part.rules(self))


class _Part(NamedTuple):
    """One of the three lists of a rule set: its JSON key, its title in messages, and the modes that its rules may
    have."""

    key: str
    title: str
    modes: tuple[RuleMode, ...]

    def rules(self, rule_set: RuleSet) -> tuple[Rule, ...]:
        found: tuple[Rule, ...] = getattr(rule_set, self.title.lower())
        return found


_MIGRATION_MODES = (RuleMode.UPGRADE, RuleMode.DOWNGRADE, RuleMode.UPDOWN)
_RECORD_MODES = (RuleMode.WRITE, RuleMode.READ, RuleMode.WRITEREAD)

PARTS: Final = (
    _Part("migrationRules", "Migration", _MIGRATION_MODES),
    _Part("domainRules", "Domain", _RECORD_MODES),
    _Part("encodingRules", "Encoding", _RECORD_MODES),
)


def check_rule_set(rule_set: RuleSet) -> None:
    """Checks that rule names are valid and unique, that rules have a type and a mode that their list (migration, domain
    or encoding) allows, and that only rules with mode WRITEREAD or UPDOWN have several actions.

    Raises:
        InvalidRuleSet: the message describes the first mistake.
    """
    names: set[str] = set()
    for part in PARTS:
        for rule in part.rules(rule_set):
            if rule.name is not None and rule.name in names:
                raise InvalidRuleSet(f"Found rule with duplicate name '{rule.name}'")
            names.add(_checked_name(rule.name))
            if rule.type is None:
                raise InvalidRuleSet("Missing rule type")
            _check_action(rule, rule.on_success)
            _check_action(rule, rule.on_failure)
            if rule.mode not in part.modes:
                raise InvalidRuleSet(f"{part.title} rules can only be {', '.join(part.modes)}")


def _check_action(rule: Rule, action: str | None) -> None:
    """Checks the actions that a client runs after a rule succeeds or fails, which `action` names. A rule with mode
    WRITEREAD or UPDOWN may have several actions, separated by commas; other rules may have one. None means no action.

    Raises:
        InvalidRuleSet: a rule of another mode has several actions.
    """
    if action is not None and "," in action and rule.mode not in (RuleMode.WRITEREAD, RuleMode.UPDOWN):
        raise InvalidRuleSet("Multiple actions only valid with WRITEREAD and UPDOWN")


def _checked_name(name: str | None) -> str:
    if name is None:
        raise InvalidRuleSet("Missing rule name")
    if not name:
        raise InvalidRuleSet("Empty rule name")
    if len(name) > NAME_CHARS_MAX:
        raise InvalidRuleSet("Rule name too long")
    if not (name[0].isalpha() or name[0] == "_"):
        raise InvalidRuleSet(f"Illegal initial character in rule name: {name}")
    # Letters and digits as Java defines them: a digit is a decimal character.
    if not all(character.isalpha() or character.isdecimal() or character in "_-" for character in name):
        raise InvalidRuleSet(f"Illegal character in rule name: {name}")
    return name


def merged_rules(*layers: RuleSet | None) -> RuleSet | None:
    """Merges the rule sets of several sources, such as the configuration and a request; None if no source has one.

    `layers` are ordered from the weakest to the strongest. Each of the three lists (migration, domain, encoding) is
    merged on its own: a rule of a stronger layer replaces the rule with the same name. The rules of the stronger layer
    follow the remaining rules of the weaker one.
    """
    merged: RuleSet | None = None
    for layer in layers:
        if merged is None or layer is None:
            merged = layer if merged is None else merged
            continue
        migration, domain, encoding = (_overlaid(part.rules(merged), part.rules(layer)) for part in PARTS)
        merged = RuleSet(migration, domain, encoding, layer.enable_at or merged.enable_at)
    return merged


def _overlaid(lower: Iterable[Rule], upper: tuple[Rule, ...]) -> tuple[Rule, ...]:
    names = {rule.name for rule in upper}
    return (*(rule for rule in lower if rule.name not in names), *upper)


def rules_without(rule_set: RuleSet, names: Collection[str]) -> RuleSet:
    """A rule set without the named rules."""
    migration, domain, encoding = (
        tuple(rule for rule in part.rules(rule_set) if rule.name not in names) for part in PARTS
    )
    return RuleSet(migration, domain, encoding, rule_set.enable_at)
