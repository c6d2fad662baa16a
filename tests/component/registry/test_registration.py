"""Order of the checks of a registration, equality of schemas, lists, pages and guids."""

from __future__ import annotations

import re
from typing import Any

import pytest

from headrace.registry.service import schema_parser
from support.cases import all_cases
from support.registry.registry_calls import STRING, USER_1, USER_2, USER_INCOMPATIBLE, Registry

BYTES = '"bytes"'
BAD = '{"type":"record","name":"R","fields":[{"name":"f","type":"strin"}]}'
OWNER_X = {"properties": {"owner": "x"}}
OWNER_Y = {"properties": {"owner": "y"}}


def fixed(label: object) -> str:
    return f'{{"type":"fixed","name":"F","size":4,"of":"{label}"}}'


def test_registration_suggests_a_type_for_an_unknown_name(registry: Registry, subject: str) -> None:
    for written, suggested in (("strin", "string"), ("integer", "int"), ("r", "R")):
        response = registry.post(f"/subjects/{subject}/versions", {"schema": BAD.replace("strin", written)})
        assert response.status == 422, response.text
        assert f"the type {written} is not defined; did you mean {suggested}?" in response.text


def test_order_of_checks(registry: Registry, subject: str) -> None:
    with all_cases() as case:
        for row, (body, expected) in enumerate(
            [
                # An existing schema is returned before any other check …
                ({"schema": USER_1}, 1),
                ({"schema": USER_1, "version": 0}, 1),
                ({"schema": USER_2, "version": -1}, 2),
                # … but not to a request for a new version or for another id; and as the latest version only if it is.
                ({"schema": USER_1, "version": 1}, 42201),
                ({"schema": USER_2, "version": 2}, 42201),
                ({"schema": USER_1, "version": 3}, 3),
                ({"schema": USER_1, "version": -1}, 3),
                ({"schema": USER_1, "id": 99}, 42205),
                # Then mode, text, compatibility and version number are checked.
                ({"schema": BAD, "id": 99}, 42205),
                ({"schema": BAD}, 42201),
                ({"schema": USER_INCOMPATIBLE, "version": 9}, 40901),
                ({"schema": USER_2 + " ", "version": 9}, 42201),
                ({"schema": USER_2.replace("mail", "post"), "version": 9}, 42201),
                ({"schema": USER_2.replace("mail", "post"), "version": 3}, 3),
                ({"schema": USER_2.replace("mail", "post"), "version": -1}, 3),
                ({"schema": USER_2.replace("mail", "post"), "id": -1}, 3),
                # A missing schema is replaced by the latest version's.
                ({}, 2),
                ({"schema": ""}, 2),
                ({"schema": "  "}, 2),
                ({"metadata": OWNER_X}, 3),
                ({"schema": USER_2, "metadata": OWNER_X}, 3),
                ({"schemaType": "JSON", "schema": "{}"}, 42201),
            ]
        ):
            with case(body):
                own = f"{subject}-{row}"
                registry.registered(own, USER_1)
                registry.registered(own, USER_2)
                response = registry.post(f"/subjects/{own}/versions", body)
                if response.status == 200:
                    assert response.json["version"] == expected
                    assert registry.get(f"/subjects/{own}/versions").json == list(range(1, max(expected, 2) + 1))
                else:
                    assert response.error[1] == expected
                    assert registry.get(f"/subjects/{own}/versions").json == [1, 2]


def test_invalid_first_version_is_rejected(registry: Registry, subject: str) -> None:
    with all_cases() as case:
        for row, (body, message) in enumerate(
            [
                ({}, "Empty schema"),
                ({"schema": ""}, "Empty schema"),
                ({"metadata": OWNER_X}, "Empty schema"),
                ({"schema": STRING, "schemaType": "JSON"}, "Invalid schema type JSON"),
                ({"schema": STRING, "version": 2}, "Version is not one more than previous version"),
            ]
        ):
            with case((body, message)):
                own = f"{subject}-{row}"
                assert registry.post(f"/subjects/{own}/versions", body).error == (422, 42201, message)
                assert registry.get(f"/subjects/{own}/versions?deleted=true").error[1] == 40401


def test_requested_version_is_added_to_metadata(registry: Registry, subject: str) -> None:
    first = registry.register(subject, fixed(subject), version=1).json
    assert first["metadata"] == {"properties": {"confluent:version": "1"}}
    # The number in the metadata stays correct, and does not make equal schemas different.
    registry.put(f"/config/{subject}", {"compatibility": "NONE"})
    assert registry.register(subject, fixed(subject)).json["version"] == 1
    second = registry.register(subject, STRING).json
    assert second["metadata"] == {"properties": {"confluent:version": "2"}}
    assert registry.post(f"/subjects/{subject}", {"schema": STRING}).json["version"] == 2


VERSION = "confluent:version"
STEPS: tuple[tuple[str, int | None, dict[str, str] | None, Any, Any], ...] = (
    # operation, version and metadata of the request, version in the response, number in its metadata
    ("register", None, None, 1, None),
    ("register", -1, None, 1, None),
    ("register", 2, None, 2, "2"),
    ("register", -1, None, 2, "2"),
    ("look up", None, None, 1, None),
    ("look up", None, {VERSION: "1"}, 1, None),
    ("look up", None, {VERSION: "2"}, 2, "2"),
    ("delete", 1, None, 1, None),
    ("look up", None, None, 2, "2"),
    ("register", None, None, 2, "2"),
    ("register", 3, None, 3, "3"),
    ("register", -1, None, 3, "3"),
    ("register", 3, None, 42201, None),
    ("register", 4, None, 4, "4"),
    ("look up", None, None, 4, "4"),
    ("register", None, {VERSION: "-1"}, 5, "5"),
    ("register", None, {VERSION: "2"}, 2, "2"),
    ("register", None, {VERSION: "3"}, 3, "3"),
    ("register", None, {VERSION: "0"}, 6, "6"),
    ("register", None, {}, 6, "6"),
    ("register", None, {"key": "value"}, 7, None),
    ("register", -1, None, 8, "8"),
    ("look up", None, {"key": "value"}, 7, None),
    ("delete", 7, None, 7, None),
    ("look up", None, {"key": "value"}, 8, "8"),
)


def test_version_number_in_metadata(registry: Registry, subject: str) -> None:
    """The steps of the Confluent registry's own test of these numbers."""
    for number, (step, version, properties, expected, number_in_metadata) in enumerate(STEPS):
        body = {"schema": USER_1, "version": version, "metadata": properties and {"properties": properties}}
        if properties == {}:
            body["metadata"] = {"properties": {}}
        if step == "delete":
            response = registry.delete(f"/subjects/{subject}/versions/{version}")
            assert response.json == expected
            continue
        path = f"/subjects/{subject}" + ("/versions" if step == "register" else "")
        response = registry.post(path, body)
        if response.status != 200:
            assert response.error[1] == expected, number
            continue
        found = registry.get(f"/subjects/{subject}/versions/{response.json['version']}").json
        numbers = found.get("metadata", {}).get("properties", {}).get(VERSION)
        assert (response.json["version"], numbers) == (expected, number_in_metadata), number


def test_schemas_with_other_metadata_are_different(registry: Registry, subject: str) -> None:
    plain = registry.register(subject, STRING).json
    labelled = registry.register(subject, STRING, metadata=OWNER_X).json
    assert (labelled["version"], labelled["id"] == plain["id"]) == (2, False)
    # Omitted metadata is that of the latest version.
    assert registry.register(subject, STRING).json["version"] == 1
    assert registry.register(subject, '{"type":"string","a":1}').json["metadata"] == OWNER_X
    assert registry.post(f"/subjects/{subject}", {"schema": STRING, "metadata": OWNER_X}).json["version"] == 2
    assert registry.post(f"/subjects/{subject}", {"schema": STRING, "metadata": OWNER_Y}).error[1] == 40403


def test_schemas_are_equal_except_for_spelling(registry: Registry, subject: str) -> None:
    with all_cases() as case:
        for row, (stored, requested, is_found) in enumerate(
            [
                (
                    '{"type":"fixed","name":"F","size":4,"b":1,"a":2}',
                    '{"a":2,"size":4,"b":1,"name":"F","type":"fixed"}',
                    True,
                ),
                (
                    '{"type":"record","name":"n.R","fields":[]}',
                    '{"type":"record","name":"R","namespace":"n","fields":[]}',
                    True,
                ),
                (
                    '{"type":"record","name":"R","fields":[],"doc":"a"}',
                    '{"type":"record","name":"R","fields":[],"doc":"b"}',
                    False,
                ),
                (
                    '{"type":"record","name":"R","fields":[],"aliases":["A"]}',
                    '{"type":"record","name":"R","fields":[]}',
                    False,
                ),
                (
                    '{"type":"enum","name":"E","symbols":["A"],"default":"A"}',
                    '{"type":"enum","name":"E","symbols":["A"]}',
                    False,
                ),
                ('{"type":"string"}', '"string"', True),
            ]
        ):
            with case((stored, requested, is_found)):
                own = f"{subject}-{row}"
                registry.put(f"/config/{own}", {"compatibility": "NONE"})
                schema_id = registry.registered(own, stored)
                assert (registry.post(f"/subjects/{own}", {"schema": requested}).status == 200) is is_found
                assert (registry.register(own, requested).json["version"] == 1) is is_found
                assert (registry.registered(own, requested) == schema_id) is is_found


def test_schema_in_one_piece_matches_split_schema_but_not_vice_versa(registry: Registry, subject: str) -> None:
    whole = '{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"fixed","name":"F","size":4}}]}'
    split = '{"type":"record","name":"R","fields":[{"name":"a","type":"F"}]}'
    registry.registered(f"{subject}-f", '{"type":"fixed","name":"F","size":4}')
    references = [{"name": "F", "subject": f"{subject}-f", "version": 1}]
    registry.registered(f"{subject}-split", split, references=references)
    registry.registered(f"{subject}-whole", whole)
    assert registry.register(f"{subject}-split", whole).json["version"] == 1
    assert registry.register(f"{subject}-whole", split, references=references).json["version"] == 2


def test_subjects_of_a_context_share_ids(registry: Registry, subject: str) -> None:
    schema_id = registry.registered(f"{subject}-a", fixed(subject))
    assert registry.registered(f"{subject}-b", fixed(subject)) == schema_id
    assert registry.get(f"/schemas/ids/{schema_id}/subjects").json == [f"{subject}-a", f"{subject}-b"]
    # The subject of the query selects the context and does not filter the users.
    for query in (f"?subject={subject}-a", "?subject=none", "?subject=:.:"):
        assert len(registry.get(f"/schemas/ids/{schema_id}/versions{query}").json) == 2
    assert registry.get(f"/schemas/ids/{schema_id}/versions?subject=:.c:").error[1] == 40403


@pytest.mark.parametrize("guid", ["00000000-0000-0000-0000-000000000000", "no-guid", "1"])
def test_unknown_guid_is_not_found(registry: Registry, guid: str) -> None:
    for suffix in ("", "/ids"):
        assert registry.get(f"/schemas/guids/{guid}{suffix}").error[:2] == (404, 40403)


def test_schema_is_read_by_guid(registry: Registry, subject: str) -> None:
    registered = registry.register(subject, fixed(subject)).json
    found = registry.get(f"/schemas/guids/{registered['guid']}").json
    assert (found["schema"], found["guid"]) == (fixed(subject), registered["guid"])
    assert "subject" not in found
    assert registry.get(f"/schemas/guids/{registered['guid'].upper()}").json == found


def test_highest_id_is_returned_on_request(registry: Registry, subject: str) -> None:
    schema_id = registry.registered(subject, fixed(subject))
    assert registry.get(f"/schemas/ids/{schema_id}?fetchMaxId=true").json["maxId"] == schema_id
    assert "maxId" not in registry.get(f"/schemas/ids/{schema_id}?fetchMaxId=false").json
    registry.registered(":.high:s", STRING)
    assert registry.get("/schemas/ids/1?fetchMaxId=true&subject=:.high:").json["maxId"] == 1


def test_offset_and_limit_select_a_page(registry: Registry) -> None:
    with all_cases() as case:
        for query, expected in [
            ("", [1, 2, 3, 4, 5]),
            ("offset=0&limit=2", [1, 2]),
            ("offset=3&limit=9", [4, 5]),
            ("offset=5", []),
            ("offset=99&limit=1", []),
            ("offset=-1&limit=1", [1]),
            ("limit=0", [1, 2, 3, 4, 5]),
            ("limit=-1", [1, 2, 3, 4, 5]),
            ("limit=x&offset=y", [1, 2, 3, 4, 5]),
            ("limit=99999999999999", [1, 2, 3, 4, 5]),
            ("offset=4294967296", []),
        ]:
            with case(query):
                registry.put("/config/:.page:", {"compatibility": "NONE"})
                for number in range(1, 6):
                    registry.registered(":.page:s", fixed(number))
                    registry.registered(f":.page:s{number}", fixed("all"))
                assert registry.get(f"/subjects/:.page:s/versions?{query}").json == expected
                names = registry.get(f"/contexts/.page/subjects?subjectPrefix=s&{query}").json
                assert names == [f":.page:s{number}" for number in ["", 1, 2, 3, 4, 5]][slice(*_bounds(query, 6))]
                schema_id = registry.get("/subjects/:.page:s1/versions/1").json["id"]
                users = registry.get(f"/schemas/ids/{schema_id}/subjects?subject=:.page:&{query}").json
                assert users == [f":.page:s{number}" for number in range(1, 6)][slice(*_bounds(query, 5))]
                versions = registry.get(f"/schemas/ids/{schema_id}/versions?subject=:.page:&{query}").json
                assert [item["subject"] for item in versions] == users


def _bounds(query: str, count: int) -> tuple[int, int]:
    """Start and end of a page in a list of this length."""
    given = dict(part.split("=") for part in query.split("&") if part)
    numbers = {key: int(value) for key, value in given.items() if value.removeprefix("-").isdigit()}
    offset = max(0, numbers.get("offset", 0))
    limit = numbers.get("limit", 0)
    return offset, offset + limit if 0 < limit < 10**9 else count


def test_list_of_schemas_is_filtered(registry: Registry) -> None:
    with all_cases() as case:
        for query, expected in [
            ("subjectPrefix=:.list:", [("a", 1), ("a", 2), ("b", 1)]),
            ("subjectPrefix=:.list:a", [("a", 1), ("a", 2)]),
            ("subjectPrefix=:.list:&latestOnly=true", [("a", 2), ("b", 1)]),
            ("subjectPrefix=:.list:&deleted=true", [("a", 1), ("a", 2), ("b", 1), ("b", 2)]),
            ("subjectPrefix=:.list:&deleted=true&latestOnly=true", [("a", 2), ("b", 2)]),
            ("subjectPrefix=:.list:&ruleType=CEL", [("a", 2)]),
            ("subjectPrefix=:.list:&ruleType=NONE", []),
            ("subjectPrefix=:.list:&latestOnly=true&ruleType=CEL", [("a", 2)]),
            ("subjectPrefix=:.list:&offset=1&limit=1", [("a", 2)]),
            ("subjectPrefix=:.list:&limit=1001", [("a", 1), ("a", 2), ("b", 1)]),
            ("subjectPrefix=none", []),
        ]:
            with case(query):
                rules = {
                    "domainRules": [{"name": "r", "kind": "CONDITION", "mode": "WRITE", "type": "CEL", "expr": "true"}]
                }
                if ".list" not in registry.get("/contexts").json:
                    registry.registered(":.list:a", USER_1)
                    registry.registered(":.list:a", USER_2, ruleSet=rules)
                    registry.registered(":.list:b", USER_1)
                    registry.registered(":.list:b", USER_2)
                    registry.delete("/subjects/:.list:b/versions/2")
                found = registry.get(f"/schemas?{query}").json
                assert [(item["subject"].removeprefix(":.list:"), item["version"]) for item in found] == expected


def test_list_of_schemas_has_default_context_by_default(registry: Registry, subject: str) -> None:
    registry.registered(subject, STRING)
    registry.registered(f":.other:{subject}", STRING)
    assert [item["subject"] for item in registry.get(f"/schemas?subjectPrefix={subject}").json] == [subject]
    found = registry.get(f"/schemas?subjectPrefix=:*:{subject}").json
    assert {item["subject"] for item in found} == {subject, f":.other:{subject}"}
    assert all(not item["subject"].startswith(":.") for item in registry.get("/schemas").json)


def test_schemas_with_the_same_lookup_key_are_compared(
    registry: Registry, subject: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts with the same MD5 can be constructed."""
    # Earlier texts are cached with their keys.
    colliding = [fixed(f"colliding {number}") for number in (1, 2, 3)]
    registry.registered(f"{subject}-target", '{"type":"fixed","name":"Alike","size":1}')
    reference = {"name": "Alike", "subject": f"{subject}-target", "version": 1}
    split, whole = (
        '{"type":"array","items":"Alike"}',
        '{"type":"array","items":{"type":"fixed","name":"Alike","size":1}}',
    )
    monkeypatch.setattr(schema_parser, "_lookup_key", lambda *_: b"k" * 16)
    registry.put(f"/config/{subject}", {"compatibility": "NONE"})
    for version, text in enumerate([colliding[0], colliding[1], '{"type":"bytes","n":"colliding"}'], 1):
        assert registry.register(subject, text).json["version"] == version
    assert registry.register(subject, split, references=[reference]).json["version"] == 4
    found = {
        text: registry.post(f"/subjects/{subject}", {"schema": text}) for text in (colliding[0], colliding[2], whole)
    }
    assert [response.json.get("version") for response in found.values()] == [1, None, 4]
    written = '{"of":"colliding 2","size":4,"type":"fixed","name":"F"}'
    assert registry.post(f"/subjects/{subject}", {"schema": written}).json["version"] == 2
    assert registry.register(subject, colliding[2]).json["version"] == 5


def test_compatibility_check_has_a_time_limit(
    registry: Registry, subject: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A registration has no time limit, because its result must not depend on the load of the machine."""
    monkeypatch.setattr("headrace.compat.resolution.PAIRS_BETWEEN_TIME_CHECKS", 1)
    monkeypatch.setattr("headrace.registry.service.compatibility.CHECK_S", -1)
    registry.registered(subject, USER_1)
    for path in ("", "/latest", "/1"):
        response = registry.post(f"/compatibility/subjects/{subject}/versions{path}?verbose=true", {"schema": USER_2})
        assert response.json["is_compatible"] is False
        assert re.search(r"\b1 pairs?\b", response.json["messages"][0])
    registry.registered(subject, USER_2)
