"""Contents of schemas: texts, guids, metadata, rules, tags, references, and the response bodies of two releases."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.registry.storage.database import sqlite_url
from support.cases import all_cases
from support.registry.registry_calls import (
    STRING,
    USER_1,
    USER_2,
    USER_INCOMPATIBLE,
    RegistryInProcess,
    registry_in_process,
)

FIXED_AND_MAP = (
    '{"type":"record","name":"C","namespace":"a.b","fields":[{"name":"f","type":{"type":"fixed","name":"D","size":4}},'
    '{"name":"m","type":{"type":"map","values":"D"}}]}'
)
FIXED_AND_MAP_WRITTEN = """
 { "fields" : [ { "type" : { "size" : 4, "name" : "a.b.D", "type" : "fixed" }, "name" : "f" },
                { "name" : "m", "type" : { "type" : "map", "values" : "a.b.D" } } ],
   "name" : "a.b.C", "type" : "record" }
"""
SUB = '{"type":"record","name":"Sub","namespace":"otherns","fields":[{"name":"x","type":"int"}]}'
MY = '{"type":"record","name":"My","namespace":"ns","fields":[{"name":"f","type":"otherns.Sub"}]}'
MY_RESOLVED = (
    '{"type":"record","name":"My","namespace":"ns","fields":[{"name":"f","type":{"type":"record","name":"Sub",'
    '"namespace":"otherns","fields":[{"name":"x","type":"int"}]}}]}'
)
RULE = {"name": "check", "kind": "CONDITION", "mode": "WRITE", "type": "CEL", "expr": "true", "disabled": False}
DROP_RULE = {"name": "drop", "kind": "TRANSFORM", "mode": "READ", "type": "X", "disabled": False}


@pytest.fixture
def lean_registry(sqlite_database_url: str) -> Iterator[RegistryInProcess]:
    with registry_in_process(sqlite_database_url, profile=7) as registry:
        yield registry


def test_texts_and_guids_equal_those_of_the_confluent_registry(registry: RegistryInProcess, subject: str) -> None:
    with all_cases() as case:
        for row, (written, stored, more, guid) in enumerate(
            [
                ('{"type":"string"}', '"string"', {}, "095d71cf-1255-6b9d-5e33-0ad575b3df5d"),
                (
                    '{"type":"string","foo":"bar"}',
                    '{"type":"string","foo":"bar"}',
                    {},
                    "ca5fb92a-f83d-f907-fc60-67b082ef919f",
                ),
                (
                    '{"type":"long","logicalType":"timestamp-millis"}',
                    '{"type":"long","logicalType":"timestamp-millis"}',
                    {},
                    "9bf4ed73-fa28-f149-7c26-d972b8be68e8",
                ),
                (FIXED_AND_MAP_WRITTEN, FIXED_AND_MAP, {}, "a8be5d3f-1e9b-f48b-3f49-95bf010bbcf1"),
                (
                    '"string"',
                    '"string"',
                    {"metadata": {"properties": {"owner": "x"}}},
                    "78aed40f-c3de-ffc7-4e70-adae86c555e4",
                ),
                (
                    MY,
                    MY,
                    {"references": [{"name": "otherns.Sub", "subject": "sub", "version": 1}]},
                    "7e2b5ed9-c503-22b5-1205-29a7bd61d76d",
                ),
            ]
        ):
            with case(written):
                own = f"{subject}-{row}"
                registry.registered("sub", SUB)
                response = registry.register(own, written, **more).json
                assert (response["schema"], response["guid"]) == (stored, guid)


def test_texts_that_avro_java_accepts_are_registered_in_canonical_form(
    registry: RegistryInProcess, subject: str
) -> None:
    """Comments and repeated keys vanish, as in the Confluent registry, so every JSON parser reads the stored text."""
    user_1 = USER_1.replace('"type":"long"', '"type":"int","type":/* 64 bits */"long"')
    with all_cases() as case:
        for row, (written, stored) in enumerate(
            [
                ("/* licence */\n" + USER_1.replace(",", ",// http://x\n"), USER_1),
                (user_1, USER_1),
                ('{"type":"string","p":1,"q":"/* text */","p":2}', '{"type":"string","p":2,"q":"/* text */"}'),
            ]
        ):
            with case(written):
                own = f"{subject}-{row}"
                registered = registry.register(own, written).json
                assert registered["schema"] == stored
                assert registry.get(f"/schemas/ids/{registered['id']}/schema").text == stored
                for again in (written, stored):
                    assert registry.post(f"/subjects/{own}", {"schema": again}).json["version"] == 1
                    assert registry.register(own, again).json["version"] == 1
                check = registry.post(f"/compatibility/subjects/{own}/versions/latest", {"schema": written})
                assert check.json == {"is_compatible": True}


def test_byte_order_mark_before_a_body_is_ignored(registry: RegistryInProcess, subject: str) -> None:
    body = json.dumps({"schema": STRING})
    for encoded, charset in (
        (b"\xef\xbb\xbf" + body.encode(), "utf-8"),
        (body.encode("utf-16"), "utf-16"),
        (("\ufeff" + body).encode("utf-16-le"), "utf-16-le"),
    ):
        headers = {"Content-Type": f"application/json; charset={charset}"}
        assert registry.call("POST", f"/subjects/{subject}/versions", encoded, headers).json["version"] == 1
    assert registry.put(f"/config/{subject}", b'\xef\xbb\xbf{"compatibility":"NONE"}').status == 200


def test_gzip_bodies_are_inflated(registry: RegistryInProcess, subject: str) -> None:
    body = gzip.compress(json.dumps({"schema": STRING}).encode())
    for encoding, sent in (
        ("gzip", body),
        ("X-GZIP", body),
        ("identity", json.dumps({"schema": STRING}).encode()),
    ):
        response = registry.call("POST", f"/subjects/{subject}/versions", sent, {"Content-Encoding": encoding})
        assert response.json["version"] == 1


def test_invalid_compressed_bodies_are_rejected(registry: RegistryInProcess, subject: str) -> None:
    body = gzip.compress(json.dumps({"schema": STRING}).encode())
    bomb = gzip.compress(b" " * (4 << 20) + b"{}", 1)
    assert len(gzip.compress(bomb)) < 20_000
    damaged = body[:-8] + b"\0" * 8
    with all_cases() as case:
        for encoding, sent, error in [
            ("deflate", body, (415, 415)),
            ("br", body, (415, 415)),
            ("gzip, gzip", gzip.compress(body), (415, 415)),
            ("gzip", body[:-1], (400, 400)),
            ("gzip", body + body, (400, 400)),
            ("gzip", damaged, (400, 400)),
            ("gzip", b"{}", (400, 400)),
            ("gzip", b"", (400, 400)),
            ("gzip", bomb, (422, 42209)),
            ("", body, (400, 400)),
        ]:
            with case((encoding, sent[:20])):
                headers = {"Content-Encoding": encoding}
                found = registry.call("POST", f"/subjects/{subject}/versions", sent, headers).error
                assert found[:2] == error
                assert error[0] != 415 or "gzip" in found[2]
        with case("bomb elsewhere"):
            message = registry.call("POST", f"/subjects/{subject}", bomb, {"Content-Encoding": "gzip"}).error
            assert message[:2] == (413, 413)
            assert "registry.request_bytes_max" in message[2]


def test_normalize_registers_the_normalized_text(registry: RegistryInProcess, subject: str) -> None:
    written = (
        '{"type":"record","name":"R","fields":[{"name":"f","type":{"type":"bytes","scale":0,"precision":4,'
        '"logicalType":"decimal"}},{"name":"d","type":"double","default":1,"b":1,"a":2}]}'
    )
    stored = (
        '{"type":"record","name":"R","fields":[{"name":"f","type":{"type":"bytes","logicalType":"decimal",'
        '"precision":4}},{"name":"d","type":"double","default":1.0,"a":2,"b":1}]}'
    )
    assert registry.register(subject, written, "?normalize=True").json["schema"] == stored
    registry.registered("sub", SUB)
    reference = {"name": "otherns.Sub", "subject": "sub", "version": 1}
    repeated = registry.register(f"{subject}-r", MY, "?normalize=true", references=[reference, reference]).json
    assert repeated["references"] == [reference]


def test_normalize_by_configuration(registry: RegistryInProcess, subject: str) -> None:
    registry.put(f"/config/{subject}", {"normalize": True})
    assert registry.register(subject, '{"type":"string","b":1,"a":2}').json["schema"] == '{"type":"string","a":2,"b":1}'


def test_resolved_format_includes_referenced_types(registry: RegistryInProcess, subject: str) -> None:
    registry.registered("sub", SUB)
    references = [{"name": "otherns.Sub", "subject": "sub", "version": 1}]
    found = registry.register(subject, MY, "?format=resolved", references=references).json
    assert (found["schema"], found["references"]) == (MY_RESOLVED, references)
    paths = [f"/schemas/ids/{found['id']}", f"/schemas/guids/{found['guid']}", f"/subjects/{subject}/versions/1"]
    for path in paths:
        assert registry.get(f"{path}?format=resolved").json["schema"] == MY_RESOLVED
        # The guid is that of the stored text.
        assert registry.get(f"{path}?format=resolved").json["guid"] == found["guid"]
        assert registry.get(path).json["schema"] == MY
        assert registry.get(f"{path}?format=no-such-format").json["schema"] == MY
    for path in (f"/schemas/ids/{found['id']}/schema", f"/subjects/{subject}/versions/latest/schema"):
        assert registry.get(f"{path}?format=RESOLVED").text == MY_RESOLVED
        assert registry.get(path).text == MY
    looked_up = registry.post(f"/subjects/{subject}?format=resolved", {"schema": MY, "references": references}).json
    assert looked_up["schema"] == MY_RESOLVED
    # Lookup of the schema in one piece finds the version with references.
    assert registry.post(f"/subjects/{subject}", {"schema": MY_RESOLVED}).json["version"] == 1


def test_qualified_reference_format_includes_the_context(registry: RegistryInProcess) -> None:
    registry.registered(":.shown:sub", SUB)
    references = [{"name": "otherns.Sub", "subject": "sub", "version": 1}]
    found = registry.register(":.shown:my", MY, references=references).json
    path = "/subjects/:.shown:my/versions/1"
    assert registry.get(path).json["references"] == references
    for parameter in ("referenceFormat", "reference_format"):
        shown = registry.get(f"{path}?{parameter}=qualified").json
        assert [reference["subject"] for reference in shown["references"]] == [":.shown:sub"]
        assert shown["guid"] == found["guid"]


def test_unresolvable_references_are_rejected(registry: RegistryInProcess, subject: str) -> None:
    reference = {"name": "otherns.Sub", "subject": "no-such-subject", "version": 1}
    status, code, message = registry.register(subject, MY, references=[reference]).error
    assert (status, code) == (422, 42201)
    assert 'No schema reference found for subject "no-such-subject" and version 1' in message
    registry.registered("sub", SUB)
    many = [{"name": f"n.N{number}", "subject": "sub", "version": 1} for number in range(1001)]
    status, code, message = registry.register(subject, STRING, references=many).error
    assert (status, code) == (422, 42201)
    assert "the limit is 1000" in message


def test_incomplete_references_make_the_schema_invalid(registry: RegistryInProcess, subject: str) -> None:
    registry.registered("sub", SUB)
    registry.registered(subject, STRING)
    complete = {"name": "otherns.Sub", "subject": "sub", "version": 1}
    with all_cases() as case:
        for key, value in (("name", None), ("subject", None), ("version", None)):
            for reference in ({**complete, key: value}, {k: v for k, v in complete.items() if k != key}):
                with case(reference):
                    body = {"schema": MY, "references": [complete, reference]}
                    for path in (f"/subjects/{subject}/versions", f"/subjects/{subject}"):
                        status, code, message = registry.post(path, body).error
                        assert (status, code) == (422, 42201)
                        assert f"{key}=null" in message
                    check = registry.post(f"/compatibility/subjects/{subject}/versions/latest?verbose=true", body)
                    assert check.json["is_compatible"] is False


def test_references_to_soft_deleted_versions_are_rejected(registry: RegistryInProcess, subject: str) -> None:
    target = f"{subject}-target"
    registry.registered(target, SUB)
    assert registry.delete(f"/subjects/{target}").status == 200
    references = [{"name": "otherns.Sub", "subject": target, "version": 1}]
    assert registry.register(subject, MY, references=references).error[:2] == (422, 42201)
    checked = registry.post(f"/compatibility/subjects/{subject}/versions", {"schema": MY, "references": references})
    assert checked.error[:2] == (422, 42201)


def test_deeply_nested_references_are_rejected(registry: RegistryInProcess, subject: str) -> None:
    def text(number: int, inner: str) -> str:
        nested = f'{{"type":"array","items":"{inner}"}}'
        for _ in range(40):
            nested = f'{{"type":"array","items":{nested}}}'
        return f'{{"type":"record","name":"N{number}","fields":[{{"name":"a","type":{nested}}}]}}'

    registry.registered(f"{subject}-0", text(0, "int"))
    for number in range(1, 30):
        references = [{"name": f"N{number - 1}", "subject": f"{subject}-{number - 1}", "version": 1}]
        response = registry.register(f"{subject}-{number}", text(number, f"N{number - 1}"), references=references)
        if response.status != 200:
            break
    assert number > 1, "one alone does not nest too deeply"
    assert response.error[:2] == (422, 42201)


def test_rules_are_stored_returned_and_part_of_the_identity(registry: RegistryInProcess, subject: str) -> None:
    rules = {"domainRules": [RULE]}
    plain = registry.register(f"{subject}-plain", STRING).json
    found = registry.register(subject, STRING, ruleSet=rules).json
    assert found["ruleSet"] == rules
    assert (found["id"], found["guid"]) != (plain["id"], plain["guid"])
    assert registry.get(f"/schemas/ids/{found['id']}").json["ruleSet"] == rules
    assert registry.get(f"/subjects/{subject}/versions/1").json["ruleSet"] == rules
    assert registry.register(subject, STRING, ruleSet=rules).json == found
    listed = registry.get(f"/schemas?subjectPrefix={subject}&ruleType=CEL").json
    assert [item["subject"] for item in listed] == [subject]
    assert registry.get(f"/schemas?subjectPrefix={subject}&ruleType=ENCRYPT").json == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"metadata": {"properties": {"**.ssn": "PII"}}}, {"metadata": {"tags": {"**.ssn": ["PII"]}}}),
        (
            {"ruleSet": {"domainRules": [{**RULE, "type": "ENCRYPTPII"}]}},
            {"ruleSet": {"domainRules": [{**RULE, "type": "ENCRYPT", "tags": ["PII"]}]}},
        ),
    ],
)
def test_contents_with_equal_guids_remain_distinct(
    registry: RegistryInProcess, subject: str, one: dict[str, Any], other: dict[str, Any]
) -> None:
    text = f'{{"type":"fixed","name":"{subject}","size":1}}'
    first = registry.register(subject, text, **one).json
    second = registry.register(f"{subject}-other", text, **other).json
    assert first["guid"] == second["guid"]
    assert first["id"] < second["id"]
    for found, content in ((first, one), (second, other)):
        (key,) = content
        assert found[key] == registry.get(f"/schemas/ids/{found['id']}").json[key] == content[key]
    # The guid returns its first content and all ids.
    guid = f"/schemas/guids/{first['guid']}"
    assert registry.get(guid).json == registry.get(f"/schemas/ids/{first['id']}").json
    assert registry.get(f"{guid}/ids").json == [{"context": ".", "id": found["id"]} for found in (first, second)]
    assert registry.register(f"{subject}-third", text, **other).json["id"] == second["id"]


def test_equal_texts_with_different_references_are_distinct(registry: RegistryInProcess, subject: str) -> None:
    for name in ("bc", "c"):
        registry.registered(f"{subject}{name}", '{"type":"fixed","name":"F","size":1}')
    text = '{"type":"array","items":"int"}'
    references = [
        {"name": "a", "subject": f"{subject}bc", "version": 1},
        {"name": f"a{subject}b", "subject": "c", "version": 1},
    ]
    registry.registered("c", '{"type":"fixed","name":"F","size":1}')
    ids = [registry.registered(f"{subject}-{n}", text, references=[item]) for n, item in enumerate(references)]
    assert len(set(ids)) == 2
    assert registry.get("/subjects/c/versions/1/referencedby").json == [ids[1]]
    for name in ("c", f"{subject}bc"):
        assert registry.delete(f"/subjects/{name}").error[:2] == (422, 42206)


def test_empty_values_in_a_rule_do_not_make_a_new_version(registry: RegistryInProcess, subject: str) -> None:
    rules = {"domainRules": [{**RULE, "doc": "", "onSuccess": "", "onFailure": ""}]}
    found = [registry.register(subject, STRING, ruleSet=rules).json["version"] for _ in range(2)]
    assert found == [1, 1]


def test_rule_defaults_and_alternative_spellings(registry: RegistryInProcess, subject: str) -> None:
    nulls = dict.fromkeys(["doc", "kind", "mode", "tags", "params", "expr", "onSuccess", "onFailure", "disabled"])
    rule = {"name": "a", "type": "T"}
    found = registry.register(
        subject,
        STRING,
        metadata={"properties": {"number": 1, "flag": True, "share": 0.5}, "tags": None, "unknown": 1},
        ruleSet={"domainRules": [{**nulls, **rule, "unknown": 1}], "migrationRules": None, "enableAt": "now"},
    ).json
    assert found["metadata"] == {"properties": {"flag": "true", "number": "1", "share": "0.5"}}
    assert found["ruleSet"] == {
        "domainRules": [{"name": "a", "kind": "TRANSFORM", "mode": "WRITEREAD", "type": "T", "disabled": False}],
        "enableAt": "now",
    }


@pytest.mark.parametrize("place", ["version", "tags", "defaultRuleSet", "overrideRuleSet"])
def test_invalid_rules_are_rejected(registry: RegistryInProcess, subject: str, place: str) -> None:
    rules = {"domainRules": [RULE, RULE]}
    registry.registered(subject, STRING)
    if place == "version":
        response = registry.register(subject, '"int"', ruleSet=rules)
    elif place == "tags":
        response = registry.post(f"/subjects/{subject}/versions/1/tags", {"ruleSet": rules})
    else:
        response = registry.put(f"/config/{subject}", {place: rules})
    assert response.error[:2] == (422, 42210)


@pytest.mark.parametrize("key", ["kind", "mode"])
def test_unknown_rule_kinds_and_modes_are_rejected(registry: RegistryInProcess, subject: str, key: str) -> None:
    response = registry.register(subject, STRING, ruleSet={"domainRules": [{**RULE, key: "NONE"}]})
    assert response.error[:2] == (400, 400)
    assert f"ruleSet.domainRules.0.{key}" in response.error[2]


def test_rules_are_dropped_if_configured(tmp_path_factory: pytest.TempPathFactory) -> None:
    url = sqlite_url(tmp_path_factory.mktemp("rules") / "registry.db")
    with registry_in_process(url, stores_rules=False) as registry:
        plain = registry.register("s", STRING).json
        # They are not even validated, as in the community edition of the Confluent registry.
        assert registry.register("s", STRING, ruleSet={"domainRules": [RULE, RULE]}).json == plain
        assert registry.put("/config/s", {"defaultRuleSet": {"domainRules": [RULE]}, "normalize": True}).json == {
            "normalize": True
        }
        assert registry.get("/config/s").json == {"normalize": True}
        change = {"rulesToMerge": {"domainRules": [RULE]}}
        assert "ruleSet" not in registry.post("/subjects/s/versions/1/tags", change).json


def test_default_and_override_metadata_and_rules_are_merged(registry: RegistryInProcess, subject: str) -> None:
    config = {
        "defaultMetadata": {"properties": {"a": "default", "b": "default"}},
        "overrideMetadata": {"properties": {"c": "override"}},
        "defaultRuleSet": {"domainRules": [RULE]},
        "overrideRuleSet": {"domainRules": [DROP_RULE]},
    }
    assert registry.put(f"/config/{subject}", config).json == config
    assert registry.get(f"/config/{subject}").json == config
    metadata = {"properties": {"b": "specific", "c": "specific"}}
    found = registry.register(subject, STRING, metadata=metadata).json
    assert found["metadata"] == {"properties": {"a": "default", "b": "specific", "c": "override"}}
    assert [rule["name"] for rule in found["ruleSet"]["domainRules"]] == ["check", "drop"]
    assert registry.register(subject, STRING, metadata=metadata).json == found


def test_new_version_inherits_metadata_and_rules(registry: RegistryInProcess, subject: str) -> None:
    metadata, rules = {"properties": {"owner": "a"}}, {"domainRules": [RULE]}
    registry.registered(subject, USER_1, metadata=metadata, ruleSet=rules)
    found = registry.register(subject, USER_2).json
    assert (found["version"], found["metadata"], found["ruleSet"]) == (2, metadata, rules)
    # A request without a schema changes only metadata and rules.
    changed = registry.post(f"/subjects/{subject}/versions", {"metadata": {"properties": {"owner": "b"}}}).json
    assert (changed["version"], changed["schema"], changed["ruleSet"]) == (3, USER_2, rules)
    assert registry.post(f"/subjects/{subject}-none/versions", {"metadata": metadata}).error == (
        422,
        42201,
        "Empty schema",
    )


def test_latest_version_with_metadata_properties(registry: RegistryInProcess, subject: str) -> None:
    for number, owner in enumerate(["a", "b", "a"], 1):
        metadata = {"properties": {"owner": owner, "n": str(number), "all": "1"}}
        registry.registered(subject, USER_1, metadata=metadata)
    path = f"/subjects/{subject}/metadata"
    assert registry.get(f"{path}?key=owner&value=b").json["version"] == 2
    assert registry.get(f"{path}?key=owner&value=a").json["version"] == 3
    assert registry.get(f"{path}?key=owner&value=a&key=n&value=1").json["version"] == 1
    assert registry.get(f"{path}?key=owner&value=c").error[:2] == (404, 40403)
    assert registry.get("/subjects/no-such-subject/metadata?key=a&value=b").error[:2] == (404, 40401)
    registry.delete(f"/subjects/{subject}/versions/3")
    assert registry.get(f"{path}?key=owner&value=a").json["version"] == 1
    assert registry.get(f"{path}?key=owner&value=a&deleted=true").json["version"] == 3


def tags(path: str, *names: str) -> dict[str, Any]:
    kind = "sr_record" if path[path.rindex(".") + 1].isupper() else "sr_field"
    return {"schemaEntity": {"entityPath": path, "entityType": kind}, "tags": list(names)}


def test_tag_changes_make_a_new_version(registry: RegistryInProcess, subject: str) -> None:
    registry.registered(subject, USER_1)
    path = f"/subjects/{subject}/versions"
    change = {"tagsToAdd": [tags("shop.User.id", "PII", "ID"), tags("shop.User", "PERSON")]}
    added = registry.post(f"{path}/latest/tags", change).json
    assert added["version"] == 2
    assert added["metadata"] == {"properties": {"confluent:version": "2"}}
    assert json.loads(added["schema"]) == {
        "type": "record",
        "name": "User",
        "namespace": "shop",
        "fields": [{"name": "id", "type": "long", "confluent:tags": ["PII", "ID"]}],
        "confluent:tags": ["PERSON"],
    }
    change = {
        "newVersion": 3,
        "tagsToRemove": [tags("shop.User.id", "ID")],
        "metadata": {"properties": {"owner": "x"}},
        "rulesToMerge": {"domainRules": [RULE, DROP_RULE]},
    }
    removed = registry.post(f"{path}/2/tags", change).json
    assert removed["metadata"] == {"properties": {"confluent:version": "3", "owner": "x"}}
    assert json.loads(removed["schema"])["fields"][0]["confluent:tags"] == ["PII"]
    assert [rule["name"] for rule in removed["ruleSet"]["domainRules"]] == ["check", "drop"]
    fewer = registry.post(f"{path}/3/tags", {"rulesToRemove": ["check"]}).json
    assert [rule["name"] for rule in fewer["ruleSet"]["domainRules"]] == ["drop"]
    assert fewer["version"] == 4


def test_find_tags_returns_tagged_entities(registry: RegistryInProcess, subject: str) -> None:
    found = registry.register(
        subject, USER_2, schemaTagsToAdd=[tags("shop.User.id", "ID"), tags("shop.User.mail", "PII", "MAIL")]
    ).json
    assert found["metadata"] == {"properties": {"confluent:version": "1"}}
    for path in (f"/subjects/{subject}/versions/1", f"/schemas/ids/{found['id']}"):
        assert "schemaTags" not in registry.get(path).json
        every = [tags("shop.User.id", "ID"), tags("shop.User.mail", "PII", "MAIL")]
        assert registry.get(f"{path}?findTags=*").json["schemaTags"] == every
        assert registry.get(f"{path}?findTags=PII&findTags=x").json["schemaTags"] == every[1:]
        assert "schemaTags" not in registry.get(f"{path}?findTags=x").json
    propagated = registry.register(subject, USER_1, propagateSchemaTags=True).json
    assert json.loads(propagated["schema"])["fields"] == [{"name": "id", "type": "long", "confluent:tags": ["ID"]}]
    untagged = registry.register(subject, USER_1, schemaTagsToRemove=[tags("shop.User.id", "ID")]).json
    assert untagged["schema"] == USER_1


def test_invalid_tag_changes_are_rejected(registry: RegistryInProcess, subject: str) -> None:
    with all_cases() as case:
        for row, (version, body, error) in enumerate(
            [
                ("1", {"tagsToAdd": [tags("shop.User.age", "A")]}, (422, 42201)),
                ("1", {"newVersion": 7, "tagsToAdd": [tags("shop.User.id", "A")]}, (422, 42201)),
                (
                    "1",
                    {"tagsToAdd": [{"schemaEntity": {"entityPath": "a", "entityType": "x"}, "tags": []}]},
                    (400, 400),
                ),
                ("1", {"tagsToAdd": [{"tags": []}]}, (400, 400)),
                ("9", {"tagsToAdd": []}, (404, 40402)),
                ("x", {"tagsToAdd": []}, (422, 42202)),
            ]
        ):
            with case((version, body)):
                own = f"{subject}-{row}"
                registry.registered(own, USER_1)
                assert registry.post(f"/subjects/{own}/versions/{version}/tags", body).error[:2] == error
                assert registry.get(f"/subjects/{own}/versions").json == [1]


def test_tag_change_of_an_unknown_subject_gives_40401(registry: RegistryInProcess) -> None:
    response = registry.post("/subjects/no-such-subject/versions/1/tags", {})
    assert response.error[:2] == (404, 40401)


def test_compatibility_group_limits_the_compared_versions(registry: RegistryInProcess, subject: str) -> None:
    registry.put(f"/config/{subject}", {"compatibilityGroup": "major"})
    one, two = {"properties": {"major": "1"}}, {"properties": {"major": "2"}}
    registry.registered(subject, USER_1, metadata=one)
    assert registry.register(subject, USER_INCOMPATIBLE, metadata=one).error[:2] == (409, 40901)
    registry.registered(subject, USER_INCOMPATIBLE, metadata=two)
    # The newest version of the group is not the newest of all. Versions without a group are a group too.
    registry.registered(subject, USER_2, metadata=one)
    checked = registry.post(
        f"/compatibility/subjects/{subject}/versions?verbose=true", {"schema": STRING, "metadata": two}
    ).json
    assert checked["is_compatible"] is False
    assert "{oldSchemaVersion: 2}" in checked["messages"]
    registry.registered(subject, STRING, metadata={"properties": {"other": "1"}})


def test_reserved_fields_are_enforced(registry: RegistryInProcess, subject: str) -> None:
    reserved = {"properties": {"confluent:reserved": "mail, age"}}
    registry.registered(subject, USER_1, metadata=reserved)
    registry.registered(f"{subject}-off", USER_1, metadata=reserved)
    registry.registered(f"{subject}-off", USER_2, metadata=reserved)
    registry.put(f"/config/{subject}", {"validateFields": True})
    status, code, message = registry.register(subject, USER_2, metadata=reserved).error
    assert (status, code) == (409, 40901)
    assert message.endswith(
        "details: [The new schema has field that conflicts with the reserved field mail., "
        "{validateFields: 'true', compatibility: 'BACKWARD'}]"
    )
    fewer = {"schema": USER_1, "metadata": {"properties": {"confluent:reserved": "mail"}}}
    for path in ("versions", "versions/1", "versions/latest"):
        assert registry.post(f"/compatibility/subjects/{subject}/{path}?verbose=true", fewer).json == {
            "is_compatible": False,
            "messages": [
                "The new schema has reserved field age removed from its metadata which is present in the old schema's "
                "metadata.",
                "{validateFields: 'true', compatibility: 'BACKWARD'}",
            ],
        }


def test_validate_new_schemas_false_accepts_lenient_schemas(registry: RegistryInProcess, subject: str) -> None:
    bad_default = '{"type":"record","name":"R","fields":[{"name":"a","type":"int","default":"x"}]}'
    bad_namespace = '{"type":"fixed","name":"F","namespace":"a-b.c","size":1}'
    for text in (bad_default, bad_namespace):
        assert registry.register(subject, text).error[:2] == (422, 42201)
        assert registry.post(f"/compatibility/subjects/{subject}/versions", {"schema": text}).error[1] == 42201
    registry.put(f"/config/{subject}", {"validateNewSchemas": False, "compatibility": "NONE"})
    for text in (bad_default, bad_namespace):
        assert registry.post(f"/compatibility/subjects/{subject}/versions", {"schema": text}).json["is_compatible"]
        registry.registered(subject, text)
    # An existing schema is found regardless of the configuration for new ones.
    registry.delete(f"/config/{subject}")
    assert registry.post(f"/subjects/{subject}", {"schema": bad_default}).json["version"] == 1
    assert registry.register(subject, bad_namespace).json["version"] == 2


def field(kind: str, more: str = "") -> str:
    return f'{{"type":"record","name":"R","fields":[{{"name":"a","type":{kind}{more}}}]}}'


def test_valid_schemas_are_accepted(registry: RegistryInProcess, subject: str) -> None:
    with all_cases() as case:
        for row, text in enumerate(
            [
                '{"type":"enum","name":"E","symbols":[]}',
                '{"type":"fixed","name":"F","size":0}',
                '{"type":"bytes","logicalType":"decimal","precision":2,"scale":4}',
                field('["null","int"]', ',"default":1'),
                field('["int","null"]', ',"default":null'),
                field('"null"', ',"default":null'),
            ]
        ):
            with case(text):
                own = f"{subject}-{row}"
                assert registry.register(own, text).json["schema"] == text


def test_invalid_schemas_are_rejected(registry: RegistryInProcess, subject: str) -> None:
    with all_cases() as case:
        for row, (text, expected) in enumerate(
            [
                ('{"type":"record","name":"R","fields":[{"name":"bad-field","type":"int"}]}', "bad-field"),
                ('{"type":"record","name":"é","fields":[]}', "é"),
                ('{"type":"fixed","name":"F","namespace":"a-b","size":1}', "a-b"),
                (field('"int"', ',"default":"x"'), '"x"'),
                (field('["null","string"]', ',"default":1'), "1"),
                ('{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"a","type":"int"}]}', "a"),
                ('{"type":"enum","name":"E"}', "symbols"),
                ('["int","int"]', "int"),
                ('[["int"]]', "union"),
                ('"int" 1', "column 7"),
                ('"no.such.Type"', "no.such.Type"),
            ]
        ):
            with case((text, expected)):
                own = f"{subject}-{row}"
                status, code, message = registry.register(own, text).error
                assert (status, code) == (422, 42201)
                start = (
                    f"Invalid schema of type AVRO, details: Invalid schema {{subject={own},version=0,schemaType=AVRO,"
                )
                assert message.startswith(start)
                assert expected in message.rpartition("details: ")[2]
                assert registry.get(f"/subjects/{own}/versions").error[1] == 40401


@pytest.mark.parametrize("policy", ["strict", "LENIENT", "Logical"])
def test_compatibility_policy_changes_the_verdict(registry: RegistryInProcess, subject: str, policy: str) -> None:
    assert registry.put(f"/config/{subject}", {"compatibilityPolicy": policy}).json == {
        "compatibilityPolicy": policy.upper()
    }
    assert registry.get(f"/config/{subject}").json["compatibilityPolicy"] == policy.upper()


def test_logical_policy_preserves_the_meaning_of_values(registry: RegistryInProcess, subject: str) -> None:
    date = '{"type":"int","logicalType":"date"}'
    changed = "the logical type is none in the new schema and date in the old schema (path '/')"
    back = "the logical type is date in the old schema and none in the new schema (path '/')"
    registry.registered(subject, date)
    check = f"/compatibility/subjects/{subject}/versions/latest?verbose=true"
    assert registry.post(check, {"schema": '"int"'}).json == {"is_compatible": True, "messages": []}
    registry.put(f"/config/{subject}", {"compatibilityPolicy": "LOGICAL"})
    assert registry.post(check, {"schema": '"int"'}).json["messages"] == [
        f"Logical compatibility: {changed}",
        "{validateFields: 'false', compatibility: 'BACKWARD'}",
    ]
    registry.put(f"/config/{subject}", {"compatibility": "FULL_TRANSITIVE"})
    assert registry.register(subject, '"int"').error[:2] == (409, 40901)
    assert registry.post(check, {"schema": '"int"'}).json["messages"][:2] == [
        f"Logical compatibility: {back}",
        f"Logical compatibility: {changed}",
    ]
    registry.put(f"/config/{subject}", {"compatibility": "NONE"})
    registry.registered(subject, '"int"')


def test_unknown_policy_is_ignored(registry: RegistryInProcess, subject: str) -> None:
    status, code, message = registry.put(f"/config/{subject}", {"compatibilityPolicy": "x"}).error
    assert (status, code) == (422, 42203)
    assert "policy" in message


CONTENT = {"metadata": {"properties": {"a": "1"}}, "ruleSet": {"domainRules": [RULE]}}


def test_response_bodies_of_release_8(registry: RegistryInProcess, subject: str) -> None:
    registry.registered("sub", SUB)
    references = [{"name": "otherns.Sub", "subject": "sub", "version": 1}]
    found = registry.register(subject, MY, references=references, **CONTENT)
    content = ["guid", "schemaType", "references", "metadata", "ruleSet", "schema"]
    assert list(found.json) == ["id", "version", *content, "ts", "deleted"]
    version = registry.get(f"/subjects/{subject}/versions/1").json
    assert list(version) == ["subject", "version", "id", *content, "ts", "deleted"]
    listed = registry.get(f"/schemas?subjectPrefix={subject}").json
    assert listed == [version]
    by_id = registry.get(f"/schemas/ids/{found.json['id']}?fetchMaxId=true&subject={subject}").json
    assert list(by_id) == [
        "subject",
        "version",
        "guid",
        "schemaType",
        "schema",
        "references",
        "metadata",
        "ruleSet",
        "maxId",
        "ts",
        "deleted",
    ]
    assert registry.register(subject, STRING).error[:2] == (409, 40901)


def test_response_bodies_of_release_7(lean_registry: RegistryInProcess) -> None:
    registry = lean_registry
    registry.registered("sub", SUB)
    references = [{"name": "otherns.Sub", "subject": "sub", "version": 1}]
    found = registry.register("s", MY, references=references, **CONTENT)
    assert found.json == {"id": 2}
    version = {"subject": "s", "version": 1, "id": 2, "references": references, **CONTENT, "schema": MY}
    assert registry.get("/subjects/s/versions/1").text == json.dumps(version, separators=(",", ":"))
    assert registry.post("/subjects/s", {"schema": MY, "references": references, **CONTENT}).json == version
    assert registry.get("/schemas?subjectPrefix=s&latestOnly=true").json[0] == version
    assert registry.get("/schemas/ids/1").text == json.dumps({"schema": SUB}, separators=(",", ":"))
    assert registry.get("/schemas/ids/1?subject=sub").json == {"subject": "sub", "version": 1, "schema": SUB}
    assert registry.register("s", STRING, **CONTENT).error[:2] == (409, 409)


def test_release_7_returns_the_configuration_request(lean_registry: RegistryInProcess) -> None:
    path = "/config/repeated"
    assert lean_registry.put(path, {"validateFields": True}).json == {"validateFields": True}
    assert lean_registry.put(path, {"compatibility": "full"}).json == {"compatibility": "FULL"}
    repeated = lean_registry.call("PUT", path, {"normalize": True}, {"Confluent-Accept-Unknown-Properties": "true"})
    assert repeated.json == {"normalize": True, "validateFields": True, "compatibility": "FULL"}


def test_client_that_accepts_unknown_keys_gets_all_keys(lean_registry: RegistryInProcess) -> None:
    ignoring = {"Confluent-Accept-Unknown-Properties": "true"}
    lean_registry.registered("full", STRING)
    for path in ("/schemas/ids/1", "/subjects/full/versions/1"):
        lean = lean_registry.get(path).json
        full = lean_registry.get(path, **ignoring).json
        assert set(full) - set(lean) == {"guid", "schemaType", "ts", "deleted"}
        assert lean_registry.get(path).json == lean
    body = {"schema": '"int"'}
    assert lean_registry.call("POST", "/subjects/full/versions", body, ignoring).error[:2] == (409, 409)
