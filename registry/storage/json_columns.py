"""Metadata and rule sets as the JSON that their columns hold."""

from __future__ import annotations

import json

from headrace.registry.domain import Metadata
from headrace.registry.rules import RuleSet


def metadata_json(metadata: Metadata | None) -> str | None:
    return None if metadata is None else json.dumps(metadata.to_json())


def read_metadata(text: str | None) -> Metadata | None:
    return None if text is None else Metadata.of(**json.loads(text))


def rule_set_json(rule_set: RuleSet | None) -> str | None:
    return None if rule_set is None else json.dumps(rule_set.to_json())


def read_rule_set(text: str | None) -> RuleSet | None:
    return None if text is None else RuleSet.of(json.loads(text))
