"""Rule sets: validation, merging of layers, and the bytes for the schema guid."""

from __future__ import annotations

import hashlib

import pytest

from headrace.registry.errors import InvalidRuleSet
from headrace.registry.rules import Rule, RuleKind, RuleMode, RuleSet, check_rule_set, merged_rules, rules_without
from support.cases import all_cases


def rule(name: str | None, mode: str = "WRITE", **more: object) -> dict[str, object]:
    return {"name": name, "kind": "CONDITION", "mode": mode, "type": "CEL", **more}


def test_invalid_rule_set_names_the_mistake():
    with all_cases() as case:
        for values, message in [
            ({"domainRules": [rule("a"), rule("a")]}, "Found rule with duplicate name 'a'"),
            (
                {"migrationRules": [rule("a", "UPDOWN")], "domainRules": [rule("a")]},
                "Found rule with duplicate name 'a'",
            ),
            ({"domainRules": [rule("a")], "encodingRules": [rule("a")]}, "Found rule with duplicate name 'a'"),
            ({"domainRules": [rule(None)]}, "Missing rule name"),
            ({"domainRules": [rule("")]}, "Empty rule name"),
            ({"domainRules": [rule("1a")]}, "Illegal initial character in rule name: 1a"),
            ({"domainRules": [rule("a.b")]}, "Illegal character in rule name: a.b"),
            ({"domainRules": [rule("-a")]}, "Illegal initial character in rule name: -a"),
            ({"domainRules": [rule("a" * 65)]}, "Rule name too long"),
            ({"domainRules": [rule("a", onFailure="A,B")]}, "Multiple actions only valid with WRITEREAD and UPDOWN"),
            (
                {"migrationRules": [rule("a", "UPGRADE", onSuccess=",")]},
                "Multiple actions only valid with WRITEREAD and UPDOWN",
            ),
            ({"domainRules": [{"name": "a"}]}, "Missing rule type"),
            ({"migrationRules": [rule("a", "READ")]}, "Migration rules can only be UPGRADE, DOWNGRADE, UPDOWN"),
            ({"domainRules": [rule("a", "UPGRADE")]}, "Domain rules can only be WRITE, READ, WRITEREAD"),
            ({"encodingRules": [rule("a", "UPDOWN")]}, "Encoding rules can only be WRITE, READ, WRITEREAD"),
        ]:
            with case(message):
                with pytest.raises(InvalidRuleSet) as raised:
                    check_rule_set(RuleSet.of(values))
                assert str(raised.value) == message


def test_valid_rule_sets_are_accepted():
    with all_cases() as case:
        for values in [
            {},
            {"migrationRules": [rule("a", "UPGRADE"), rule("b", "DOWNGRADE"), rule("c", "UPDOWN")]},
            {"domainRules": [rule("a" * 64), rule("a-", "WRITEREAD", onSuccess="A,B", onFailure="C,D")]},
            {"migrationRules": [rule("a", "UPDOWN", onFailure="A,B")]},
            {"domainRules": [rule("_a1"), rule("é", "READ"), rule("c", "WRITEREAD")], "encodingRules": [rule("d")]},
        ]:
            with case(values):
                check_rule_set(RuleSet.of(values))


def test_rule_to_json_has_the_api_s_order_and_no_empty_values():
    values = {
        "disabled": True,
        "onFailure": "DLQ",
        "onSuccess": "NONE",
        "expr": "true",
        "params": {"b": "2", "a": "1"},
        "tags": ["PII", "A", "PII"],
        "type": "CEL",
        "mode": "READ",
        "kind": "CONDITION",
        "doc": "d",
        "name": "n",
    }
    written = Rule.of(values).to_json()
    assert list(written) == list(reversed(values))
    assert written == {**values, "tags": ["A", "PII"]}
    assert list(written["params"]) == ["a", "b"]
    assert Rule.of({"name": "n", "type": "T", "unknown": 1}).to_json() == {
        "name": "n",
        "kind": "TRANSFORM",
        "mode": "WRITEREAD",
        "type": "T",
        "disabled": False,
    }


def test_rule_set_to_json_round_trips():
    values = {
        "migrationRules": [rule("m", "UPDOWN")],
        "domainRules": [rule("d")],
        "encodingRules": [rule("e", params={"k": "v"})],
        "enableAt": "2026-01-01",
    }
    rules = RuleSet.of(values)
    assert RuleSet.of(rules.to_json()) == rules
    assert list(rules.to_json()) == ["migrationRules", "domainRules", "encodingRules", "enableAt"]
    assert RuleSet.of({"domainRules": None}).to_json() == {}


def test_stronger_layer_replaces_rules_of_the_same_name_and_list():
    default = RuleSet.of({"domainRules": [rule("a", doc="default"), rule("b", doc="default")], "enableAt": "1"})
    specific = RuleSet.of({"domainRules": [rule("c", doc="specific"), rule("a", doc="specific")]})
    override = RuleSet.of({"migrationRules": [rule("b", "UPGRADE")], "enableAt": "2"})
    merged = merged_rules(default, None, specific, override)
    assert merged is not None
    assert [(found.name, found.doc) for found in merged.domain] == [
        ("b", "default"),
        ("c", "specific"),
        ("a", "specific"),
    ]
    assert [found.name for found in merged.migration] == ["b"]
    assert merged.enable_at == "2"
    assert merged_rules(None, None) is None
    assert merged_rules(None, specific, None) is specific


def test_rules_without_removes_names_from_every_list():
    rules = RuleSet.of({"domainRules": [rule("a"), rule("b")], "encodingRules": [rule("c")]})
    assert rules_without(rules, ["a", "c", "x"]) == RuleSet.of({"domainRules": [rule("b")]})


def test_has_type_finds_rules_by_type():
    rules = RuleSet.of({"encodingRules": [rule("c", type="ENCRYPT")]})
    assert rules.has_type("ENCRYPT")
    assert not rules.has_type("CEL")


def test_hashed_bytes_of_rules_have_a_fixed_order():
    # Name, doc, kind, mode, type, tags, params, expr, onSuccess, onFailure, then 1 if disabled; list after list.
    first = Rule("n", "d", RuleKind.CONDITION, RuleMode.READ, "T", ("a", "b"), (("k", "v"),), "x", "s", "f", True)
    rules = RuleSet((Rule("m", type="U"),), (first,))
    assert rules.hashed_bytes() == b"mTRANSFORMWRITEREADU" + b"ndCONDITIONREADTabkvxsf\x01"
    assert hashlib.md5(RuleSet().hashed_bytes()).hexdigest() == "d41d8cd98f00b204e9800998ecf8427e"
