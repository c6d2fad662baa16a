"""Behaviour of the REST API that clients of the Confluent Schema Registry rely on."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from headrace.version import VERSION
from support.cases import all_cases
from support.registry.registry_calls import (
    CONTENT_TYPE,
    STRING,
    USER_1,
    USER_2,
    USER_INCOMPATIBLE,
    Registry,
)


@pytest.fixture
def restored_level(registry: Registry) -> Iterator[None]:
    yield
    registry.delete("/config")


def test_register_returns_id_and_version(registry: Registry, subject: str) -> None:
    response = registry.register(subject, ' { "type" : "string" } ')
    assert response.status == 200
    assert list(response.json) == ["id", "version", "guid", "schemaType", "schema", "ts", "deleted"]
    assert response.json["schema"] == STRING
    assert response.json["guid"] == "095d71cf-1255-6b9d-5e33-0ad575b3df5d"
    assert response.json["version"] == 1


def test_equal_schema_has_one_id_under_every_subject(registry: Registry, subject: str) -> None:
    first = registry.registered(f"{subject}-a", USER_1)
    assert registry.registered(f"{subject}-b", USER_1) == first
    assert registry.registered(f"{subject}-a", USER_1) == first
    assert registry.get(f"/subjects/{subject}-a/versions").json == [1]
    users = registry.get(f"/schemas/ids/{first}/versions").json
    assert {"subject": f"{subject}-a", "version": 1} in users
    assert {"subject": f"{subject}-b", "version": 1} in users
    assert {f"{subject}-a", f"{subject}-b"} <= set(registry.get(f"/schemas/ids/{first}/subjects").json)


def test_register_returns_existing_version_for_equivalent_text(registry: Registry, subject: str) -> None:
    written = '{"type":"fixed","name":"F","size":4,"b":1,"a":2}'
    again = '{"a":2,"size":4,"b":1,"name":"F","type":"fixed"}'
    first = registry.register(subject, written).json
    assert registry.register(subject, again).json == first
    assert registry.call("POST", f"/subjects/{subject}", {"schema": again}).json["version"] == 1


def test_version_can_be_read_by_number_latest_and_text(registry: Registry, subject: str) -> None:
    first = registry.registered(subject, USER_1)
    second = registry.registered(subject, USER_2)
    assert registry.get(f"/subjects/{subject}/versions/").json == [1, 2]
    one = registry.get(f"/subjects/{subject}/versions/1").json
    assert list(one) == ["subject", "version", "id", "guid", "schemaType", "schema", "ts", "deleted"]
    assert (one["subject"], one["version"], one["id"], one["schema"]) == (subject, 1, first, USER_1)
    for latest in ("latest", "-1"):
        assert registry.get(f"/subjects/{subject}/versions/{latest}").json["id"] == second
    assert registry.get(f"/subjects/{subject}/versions/2/schema").text == USER_2
    assert registry.get(f"/schemas/ids/{second}").json["schema"] == USER_2
    assert registry.get(f"/schemas/ids/{second}/schema").text == USER_2
    named = registry.get(f"/schemas/ids/{second}?subject={subject}&fetchMaxId=true").json
    assert (named["subject"], named["version"]) == (subject, 2)
    assert named["maxId"] >= second
    assert registry.get("/schemas/types").json == ["AVRO"]
    listed = registry.get(f"/schemas?subjectPrefix={subject}&latestOnly=true").json
    assert [(item["subject"], item["version"]) for item in listed] == [(subject, 2)]


def test_subjects_are_filtered_by_prefix_and_paginated(registry: Registry, subject: str) -> None:
    for name in ("b", "a", "C"):
        registry.registered(f"{subject}.{name}", STRING)
    assert registry.get(f"/subjects?subjectPrefix={subject}.").json == [f"{subject}.{name}" for name in ("C", "a", "b")]
    assert registry.get(f"/subjects?subjectPrefix=:*:{subject}.&offset=1&limit=1").json == [f"{subject}.a"]
    assert registry.get(f"/subjects?subjectPrefix={subject}.c").json == []
    assert f"{subject}.a" in registry.get("/subjects").json


def test_subject_may_contain_any_character(registry: Registry) -> None:
    with all_cases() as case:
        for encoded in ["a%2Fb", "%C3%A4%20%3F", "a+b", "%25", "..%2f..", "a%3Ab", "%2A", "x" * 1300]:
            with case(encoded):
                from urllib.parse import unquote

                schema_id = registry.registered(encoded, STRING)
                assert unquote(encoded) in registry.get("/subjects").json
                assert registry.get(f"/subjects/{encoded}/versions/1").json["id"] == schema_id
                assert registry.call("PUT", f"/config/{encoded}", {"compatibility": "full"}).json == {
                    "compatibility": "FULL"
                }
                assert registry.delete(f"/subjects/{encoded}").json == [1]
                assert registry.delete(f"/subjects/{encoded}?permanent=true").json == [1]


def test_lookup_distinguishes_unknown_subject_and_unknown_schema(registry: Registry, subject: str) -> None:
    body = {"schema": USER_1}
    assert registry.call("POST", f"/subjects/{subject}", body).error[:2] == (404, 40401)
    registry.registered(subject, STRING)
    assert registry.call("POST", f"/subjects/{subject}", body).error[:2] == (404, 40403)


def test_invalid_version_numbers_are_rejected(registry: Registry) -> None:
    with all_cases() as case:
        for version in ["0", "-2", "2147483648", "9" * 400, "one", "%20", "1.0"]:
            with case(version):
                status, code, message = registry.get(f"/subjects/none/versions/{version}").error
                assert (status, code) == (422, 42202)
                assert message.endswith('Allowed values are between [1, 2^31-1] and the string "latest"')


def test_unknown_version_gives_40402(registry: Registry, subject: str) -> None:
    registry.registered(subject, STRING)
    for method, suffix in (("GET", ""), ("DELETE", ""), ("GET", "/schema"), ("GET", "/referencedby")):
        response = registry.call(method, f"/subjects/{subject}/versions/7{suffix}")
        assert response.error[:2] == (404, 40402)


def test_invalid_schemas_are_rejected(registry: Registry, subject: str) -> None:
    assert registry.register(subject, "").error == (422, 42201, "Empty schema")
    assert registry.call("POST", f"/subjects/{subject}/versions", {}).error == (422, 42201, "Empty schema")
    wrong_type = registry.register(subject, STRING, schemaType="JSON")
    assert wrong_type.error == (422, 42201, "Invalid schema type JSON")
    malformed = '{"type":"record","name":"R","fields":[\n  {"name":"f","type":"strin"}]}'
    status, code, message = registry.register(subject, malformed).error
    assert (status, code) == (422, 42201)
    assert message.startswith("Invalid schema of type AVRO, details: Invalid schema {subject=")
    assert "line 2, column 22: " in message
    assert "strin" in message
    bad_default = '{"type":"record","name":"R","fields":[{"name":"f","type":"int","default":"x"}]}'
    assert registry.register(subject, bad_default).error[:2] == (422, 42201)
    assert registry.register("__GLOBAL", STRING).error[:2] == (422, 42208)
    assert registry.register(subject, STRING, version=5).error == (
        422,
        42201,
        "Version is not one more than previous version",
    )
    assert registry.register(subject, STRING, id=7).error == (
        422,
        42205,
        f"Subject {subject} in context . is not in import mode",
    )
    assert registry.get(f"/subjects/{subject}/versions").error[1] == 40401


def test_incompatible_schema_is_rejected_with_reasons(registry: Registry, subject: str) -> None:
    registry.registered(subject, USER_1)
    status, code, message = registry.register(subject, USER_INCOMPATIBLE).error
    assert (status, code) == (409, 40901)
    assert message.startswith(
        f'Schema being registered is incompatible with an earlier schema for subject "{subject}", details: '
        "[{errorType:'READER_FIELD_MISSING_DEFAULT_VALUE', description:'The field 'age' at path '/fields/1'"
    )
    assert message.endswith("{validateFields: 'false', compatibility: 'BACKWARD'}]")
    assert "{oldSchemaVersion: 1}" in message
    assert registry.get(f"/subjects/{subject}/versions").json == [1]


def test_compatibility_check_reports_incompatibilities(registry: Registry, subject: str) -> None:
    path = f"/compatibility/subjects/{subject}/versions"
    compatible, wrong = {"schema": USER_2}, {"schema": USER_INCOMPATIBLE}
    for target in (path, f"{path}/", f"{path}/latest"):
        assert registry.call("POST", target, compatible).json == {"is_compatible": True}
    assert registry.call("POST", f"{path}/1", compatible).error[:2] == (404, 40402)
    registry.registered(subject, USER_1)
    for target in (path, f"{path}/latest", f"{path}/-1", f"{path}/1"):
        assert registry.call("POST", target, compatible).json == {"is_compatible": True}
        assert registry.call("POST", f"{target}?verbose=True", compatible).json == {
            "is_compatible": True,
            "messages": [],
        }
        assert registry.call("POST", target, wrong).json == {"is_compatible": False}
        messages = registry.call("POST", f"{target}?verbose=true", wrong).json["messages"]
        assert messages[0].startswith("{errorType:'READER_FIELD_MISSING_DEFAULT_VALUE'")
    assert registry.call("POST", path, {"schema": "{"}).error[:2] == (422, 42201)
    verbose = registry.call("POST", f"{path}?verbose=true", {"schema": "{"}).json
    assert verbose["is_compatible"] is False
    assert "line 1" in verbose["messages"][0]


def test_transitive_level_compares_all_versions(registry: Registry, subject: str) -> None:
    fields = '{"type":"record","name":"R","fields":[%s]}'
    one = fields % '{"name":"a","type":"int"}'
    two = fields % ""
    three = fields % '{"name":"a","type":"string","default":""}'
    registry.registered(subject, one)
    registry.registered(subject, two)
    path = f"/compatibility/subjects/{subject}/versions"
    assert registry.call("POST", path, {"schema": three}).json == {"is_compatible": True}
    registry.call("PUT", f"/config/{subject}", {"compatibility": "backward_transitive"})
    assert registry.call("POST", path, {"schema": three}).json == {"is_compatible": False}
    assert registry.call("POST", f"{path}/2", {"schema": three}).json == {"is_compatible": True}
    assert registry.register(subject, three).error[:2] == (409, 40901)
    registry.call("PUT", f"/config/{subject}", {"compatibility": "NONE"})
    registry.registered(subject, three)


@pytest.mark.usefixtures("restored_level")
def test_configuration_is_set_inherited_and_deleted(registry: Registry, subject: str) -> None:
    own = f"/config/{subject}"
    assert registry.get("/config").json == {"compatibilityLevel": "BACKWARD"}
    assert registry.get(f"{own}?defaultToGlobal=true").json == {"compatibilityLevel": "BACKWARD"}
    assert registry.call("PUT", "/config", {"compatibility": "full_transitive"}).json == {
        "compatibility": "FULL_TRANSITIVE"
    }
    assert registry.get("/config/").json == {"compatibilityLevel": "FULL_TRANSITIVE"}
    assert registry.get(f"{own}?defaultToGlobal=TRUE").json == {"compatibilityLevel": "FULL_TRANSITIVE"}
    assert registry.call("PUT", own, {"compatibility": "NONE"}).json == {"compatibility": "NONE"}
    # Omitted keys do not change; null removes a key.
    both = {"normalize": True, "compatibility": "NONE"}
    for _ in range(2):
        assert registry.call("PUT", own, {"normalize": True}).json == both
    assert registry.get(own).json == {"normalize": True, "compatibilityLevel": "NONE"}
    assert registry.call("PUT", own, {"normalize": None}).json == {"compatibility": "NONE"}
    assert registry.get(own).json == {"compatibilityLevel": "NONE"}
    for level in ("SIDEWAYS", ""):
        status, code, message = registry.call("PUT", own, {"compatibility": level}).error
        assert (status, code) == (422, 42203)
        assert message.startswith("Invalid compatibility level. Valid values are none, backward, ")
    assert registry.delete(own).json == {"compatibilityLevel": "NONE"}
    assert registry.get(own).error[1] == 40408
    assert registry.delete("/config").json == {"compatibilityLevel": "FULL_TRANSITIVE"}
    assert registry.get("/config").json == {"compatibilityLevel": "BACKWARD"}


def test_normalization_is_enabled_by_query_or_configuration(registry: Registry, subject: str) -> None:
    written = '{"type":"fixed","name":"F","size":4,"b":1,"a":2}'
    normal = '{"type":"fixed","name":"F","size":4,"a":2,"b":1}'
    assert registry.register(f"{subject}-plain", written).json["schema"] == written
    assert registry.register(f"{subject}-query", written, "?normalize=true").json["schema"] == normal
    registry.call("PUT", f"/config/{subject}-config", {"normalize": True})
    assert registry.register(f"{subject}-config", written).json["schema"] == normal


def test_references_are_resolved_and_protected(registry: Registry, subject: str) -> None:
    target, user = f"{subject}-target", f"{subject}-user"
    registry.registered(target, '{"type":"fixed","name":"Id","namespace":"n","size":4}')
    text = '{"type":"record","name":"R","fields":[{"name":"id","type":"n.Id"}]}'
    reference = {"name": "n.Id", "subject": target, "version": 1}
    missing = registry.register(user, text, references=[{**reference, "version": 9}])
    assert missing.error[:2] == (422, 42201)
    assert f'No schema reference found for subject "{target}" and version 9' in missing.error[2]
    schema_id = registry.registered(user, text, references=[reference])
    assert registry.get(f"/schemas/ids/{schema_id}").json["references"] == [reference]
    resolved = registry.get(f"/schemas/ids/{schema_id}?format=resolved").json["schema"]
    assert '"size":4' in resolved
    # The same schema in one piece is equal, and "latest" becomes a number.
    assert registry.call("POST", f"/subjects/{user}", {"schema": resolved}).json["id"] == schema_id
    assert registry.registered(user, text, references=[{**reference, "version": -1}]) == schema_id
    assert registry.get(f"/subjects/{target}/versions/1/referencedby").json == [schema_id]
    refused = (
        422,
        42206,
        f"One or more references exist to the schema {{magic=1,keytype=SCHEMA,subject={target},version=1}}.",
    )
    assert registry.delete(f"/subjects/{target}/versions/1").error == refused
    assert registry.delete(f"/subjects/{target}").error == refused
    assert registry.delete(f"/subjects/{user}").json == [1]
    assert registry.get(f"/subjects/{target}/versions/1/referencedby").json == []
    assert registry.delete(f"/subjects/{target}").json == [1]
    # A soft-deleted schema may be registered again, so it still protects its references.
    assert registry.delete(f"/subjects/{target}?permanent=true").error == refused
    assert registry.delete(f"/subjects/{user}?permanent=true").json == [1]
    assert registry.delete(f"/subjects/{target}?permanent=true").json == [1]


def test_metadata_is_inherited_and_distinguishes_versions(registry: Registry, subject: str) -> None:
    labelled = registry.register(subject, STRING, metadata={"properties": {"owner": "x"}}).json
    assert labelled["guid"] == "78aed40f-c3de-ffc7-4e70-adae86c555e4"
    assert labelled["metadata"] == {"properties": {"owner": "x"}}
    # A request without metadata inherits it; other metadata makes another version.
    assert registry.register(subject, STRING).json == labelled
    assert registry.call("POST", f"/subjects/{subject}", {"schema": STRING}).json["id"] == labelled["id"]
    other = registry.register(subject, STRING, metadata={"properties": {"owner": "y"}}).json
    assert (other["version"], other["id"] == labelled["id"]) == (2, False)
    changed = registry.call("POST", f"/subjects/{subject}/versions", {"metadata": {"properties": {"owner": "z"}}}).json
    assert (changed["version"], changed["schema"]) == (3, STRING)
    assert registry.register(subject, '"bytes"').json["metadata"] == {"properties": {"owner": "z"}}


def test_version_is_deleted_softly_then_permanently(registry: Registry, subject: str) -> None:
    first, second = registry.registered(subject, USER_1), registry.registered(subject, USER_2)
    path = f"/subjects/{subject}/versions"
    assert registry.delete(f"{path}/1?permanent=true").error[:2] == (404, 40407)
    assert registry.get(f"/schemas/ids/{first}?subject={subject}").json["deleted"] is False
    assert registry.delete(f"{path}/1").json == 1
    assert registry.delete(f"{path}/1").error[:2] == (404, 40406)
    assert registry.get(path).json == [2]
    assert registry.get(f"{path}?deleted=true").json == [1, 2]
    assert registry.get(f"{path}?deletedOnly=true&deleted=true").json == [1]
    assert registry.get(f"{path}/1").error[:2] == (404, 40402)
    assert registry.get(f"{path}/1?deleted=true").json["deleted"] is True
    assert registry.get(f"/schemas/ids/{first}?subject={subject}").json["deleted"] is True
    assert registry.delete(f"{path}/latest").json == 2
    assert registry.delete(f"{path}/latest").error[:2] == (404, 40402)
    assert registry.get(path).error[1] == 40401
    assert registry.delete(f"{path}/2?permanent=true").json == 2
    assert registry.get(f"{path}?deleted=true").json == [1]
    assert registry.get(f"/schemas/ids/{second}/versions").status in (200, 404)


def test_version_numbers_are_reused_after_permanent_deletion_only(registry: Registry, subject: str) -> None:
    texts = ['"string"', '"bytes"', '{"type":"bytes","n":3}', '{"type":"bytes","n":4}']
    path = f"/subjects/{subject}/versions"
    registry.registered(subject, texts[0])
    registry.registered(subject, texts[1])
    registry.delete(f"{path}/2")
    # A soft-deleted number is not reused …
    assert registry.register(subject, texts[2]).json["version"] == 3
    for version in (2, 3):
        registry.delete(f"{path}/{version}")
        registry.delete(f"{path}/{version}?permanent=true")
    # … but the numbers of permanently deleted top versions are, and a permanently deleted subject starts at 1.
    assert registry.register(subject, texts[3]).json["version"] == 2
    registry.delete(f"/subjects/{subject}")
    assert registry.delete(f"/subjects/{subject}?permanent=true").json == [1, 2]
    assert registry.register(subject, texts[2]).json["version"] == 1


def test_soft_deleted_schema_is_registered_as_a_new_version(registry: Registry, subject: str) -> None:
    schema_id = registry.registered(subject, USER_1)
    registry.registered(subject, USER_2)
    registry.delete(f"/subjects/{subject}/versions/1")
    repeated = registry.register(subject, USER_1).json
    assert (repeated["version"], repeated["id"]) == (3, schema_id)
    assert registry.get(f"/subjects/{subject}/versions?deleted=true").json == [2, 3]
    assert registry.get(f"/schemas/ids/{schema_id}?subject={subject}").json["version"] == 3


def test_subject_is_deleted_softly_then_permanently(registry: Registry, subject: str) -> None:
    unique = f'{{"type":"fixed","name":"F","size":3,"of":"{subject}"}}'
    schema_id = registry.registered(subject, unique)
    registry.call("PUT", f"/config/{subject}", {"compatibility": "FULL"})
    path = f"/subjects/{subject}"
    assert registry.delete(f"{path}?permanent=true").error[:2] == (404, 40405)
    assert registry.get(f"/schemas/ids/{schema_id}").json["deleted"] is False
    assert registry.delete(path).json == [1]
    assert registry.delete(path).error[:2] == (404, 40404)
    assert subject not in registry.get("/subjects").json
    assert subject in registry.get("/subjects?deleted=true").json
    assert subject in registry.get("/subjects?deletedOnly=true").json
    assert registry.get(f"/schemas/ids/{schema_id}").json["deleted"] is True
    assert registry.get(f"/schemas/ids/{schema_id}/schema").text == unique
    assert registry.get(f"/schemas/ids/{schema_id}/versions").json == []
    assert registry.get(f"/schemas/ids/{schema_id}/versions?deleted=true").json == [{"subject": subject, "version": 1}]
    body = {"schema": unique}
    assert registry.call("POST", path, body).error[1] == 40401
    assert registry.call("POST", f"{path}?deleted=true", body).json["id"] == schema_id
    assert registry.get(f"/config/{subject}").json == {"compatibilityLevel": "FULL"}
    assert registry.delete(f"{path}?permanent=true").json == [1]
    assert registry.get(f"/config/{subject}").error[1] == 40408
    # The schema has no versions left: its id is unknown, also to cached responses, and is never reused.
    assert registry.get(f"/schemas/ids/{schema_id}").error[:2] == (404, 40403)
    assert registry.get(f"/schemas/ids/{schema_id}/schema").error[1] == 40403
    assert registry.registered(subject, unique) > schema_id


def test_content_type_follows_the_accept_header(registry: Registry) -> None:
    with all_cases() as case:
        for accept, expected in [
            ("", CONTENT_TYPE),
            ("*/*", CONTENT_TYPE),
            ("application/json", "application/json"),
            ("application/json, application/vnd.schemaregistry+json", "application/vnd.schemaregistry+json"),
            (
                "application/vnd.schemaregistry.v1+json, application/vnd.schemaregistry+json, application/json",
                CONTENT_TYPE,
            ),
            ("text/html,application/xhtml+xml,*/*;q=0.8", CONTENT_TYPE),
            # The default of Java's HttpURLConnection up to 17.0.3.
            ("text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2", CONTENT_TYPE),
            ("application/json; charset=utf-8", "application/json"),
            ("application/vnd.schemaregistry.v1+json; qs=0.9", CONTENT_TYPE),
            ("*", CONTENT_TYPE),
            ("*;q=0.2", CONTENT_TYPE),
            ("*/x", CONTENT_TYPE),
        ]:
            with case(accept):
                response = registry.get("/subjects", **({"Accept": accept} if accept else {}))
                assert (response.status, response.headers["Content-Type"]) == (200, expected)
                missing = registry.get("/schemas/ids/999999", **({"Accept": accept} if accept else {}))
                assert (missing.status, missing.headers["Content-Type"]) == (404, expected)


def test_unsupported_content_types_are_rejected(registry: Registry, subject: str) -> None:
    assert registry.get("/subjects", Accept="text/html").error == (406, 406, "HTTP 406 Not Acceptable")
    path, body = f"/subjects/{subject}/versions", b'{"schema":"\\"string\\""}'
    refused = registry.call("POST", path, body, {"Content-Type": "text/plain"})
    assert refused.error == (415, 415, "HTTP 415 Unsupported Media Type")
    for content_type in (
        "application/json; charset=utf-8",
        "application/octet-stream",
        "application/vnd.schemaregistry+json",
    ):
        assert registry.call("POST", path, body, {"Content-Type": content_type}).status == 200
    utf16 = body.decode().encode("utf-16")
    assert registry.call("POST", path, utf16, {"Content-Type": "application/json; charset=utf-16"}).status == 200


def test_root_health_and_metadata_endpoints(registry: Registry) -> None:
    assert registry.get("/").json == {}
    assert registry.call("POST", "/", {}).json == {}
    assert registry.get("/mode").json == {"mode": "READWRITE"}
    assert registry.get("/mode/any?defaultToGlobal=true").json == {"mode": "READWRITE"}
    assert registry.get("/contexts").json == ["."]
    assert registry.get("/healthz").json == {"status": "ok"}
    assert registry.get("/readyz").json == {"status": "ready"}
    clusters = registry.get("/v1/metadata/id").json["scope"]["clusters"]
    assert re.fullmatch("headrace-[0-9a-f]{32}", clusters["schema-registry-cluster"])
    assert registry.get("/v1/metadata/id").json["scope"]["clusters"] == clusters
    assert registry.get("/v1/metadata/version").json == {"version": VERSION, "commitId": "c0ffee"}
    assert registry.get("/v1/metadata/deployment").json == {"attributes": []}
