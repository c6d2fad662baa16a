"""Contexts: separate subjects and ids, requests below /contexts, and searches across contexts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.registry.names import NAME_BYTES_MAX
from support.cases import all_cases
from support.registry.registry_calls import STRING, USER_1, USER_2, Registry, RegistryInProcess, registry_in_process

BYTES = '"bytes"'
FIXED = '{"type":"fixed","name":"Id","namespace":"n","size":4}'
USES_FIXED = '{"type":"record","name":"R","fields":[{"name":"id","type":"n.Id"}]}'


@pytest.fixture
def registry(database_url: str) -> Iterator[RegistryInProcess]:
    """The default context has `orders` 1 (id 1) and 2 (id 2), `.shop` has `orders` 1 (id 1) and `only` 1 (id 2)."""
    with registry_in_process(database_url) as registry:
        registry.registered("orders", USER_1)
        registry.registered("orders", USER_2)
        registry.registered(":.shop:orders", STRING)
        registry.registered(":.shop:only", BYTES)
        yield registry


def test_ids_count_from_1_in_each_context(registry: Registry) -> None:
    found = [registry.get(f"/subjects/{name}/versions/1").json["id"] for name in ("orders", ":.shop:orders")]
    assert found == [1, 1]
    texts = [registry.get(f"/schemas/ids/1{query}").json["schema"] for query in ("", "?subject=:.shop:")]
    assert texts == [USER_1, STRING]


def test_content_has_an_id_per_context_and_one_guid(registry: Registry) -> None:
    first = registry.register(":.twin:a", USER_2).json
    assert (first["id"], registry.register("orders", USER_2).json["id"]) == (1, 2)
    assert first["guid"] == registry.get("/schemas/ids/2").json["guid"]
    assert registry.get(f"/schemas/guids/{first['guid']}/ids").json == [
        {"context": ".", "id": 2},
        {"context": ".twin", "id": 1},
    ]


def test_context_is_listed_after_its_first_subject(registry: Registry) -> None:
    assert {".", ".shop"} <= set(registry.get("/contexts").json)
    assert registry.get("/contexts").json[0] == "."
    assert registry.get("/contexts?contextPrefix=.sh").json == [".shop"]
    assert registry.get("/contexts?offset=1&limit=1").json == [".shop"]
    registry.put("/config/:.asked:", {"compatibility": "FULL"})
    assert ".asked" not in registry.get("/contexts").json


def test_subject_lists_are_limited_to_contexts(registry: Registry) -> None:
    with all_cases() as case:
        for query, expected in [
            ("", [":.shop:only", ":.shop:orders", "orders"]),
            ("?subjectPrefix=:*:", [":.shop:only", ":.shop:orders", "orders"]),
            ("?subjectPrefix=:*:or", [":.shop:orders", "orders"]),
            ("?subjectPrefix=", ["orders"]),
            ("?subjectPrefix=or", ["orders"]),
            ("?subjectPrefix=on", []),
            ("?subjectPrefix=:.:", ["orders"]),
            ("?subjectPrefix=:.shop:", [":.shop:only", ":.shop:orders"]),
            ("?subjectPrefix=:.shop", [":.shop:only", ":.shop:orders"]),
            ("?subjectPrefix=:.shop:on", [":.shop:only"]),
            ("?subjectPrefix=:.none:", []),
            ("?subject=:.shop:on", [":.shop:only"]),
        ]:
            with case((query, expected)):
                assert registry.get(f"/subjects{query}").json == expected


def test_request_below_a_context_equals_the_request_with_a_qualified_subject(registry: Registry) -> None:
    with all_cases() as case:
        for method, path, same_as in [
            ("GET", "/contexts/.shop/subjects", "/subjects?subjectPrefix=:.shop:"),
            ("GET", "/contexts/shop/subjects", "/subjects?subjectPrefix=:.shop:"),
            ("GET", "/contexts/.shop/subjects?subjectPrefix=on", "/subjects?subjectPrefix=:.shop:on"),
            ("GET", "/contexts/.shop/subjects?subjectPrefix=:*:", "/subjects?subjectPrefix=:*:"),
            ("GET", "/contexts/.shop/subjects?subject=on", "/subjects?subjectPrefix=:.shop:on"),
            ("GET", "/contexts/./subjects", "/subjects?subjectPrefix="),
            ("GET", "/contexts/:.:/subjects", "/subjects?subjectPrefix="),
            ("GET", "/contexts/:.:/mode", "/mode"),
            ("GET", "/contexts/:.shop:/subjects", "/subjects?subjectPrefix=:.shop:"),
            ("GET", "/contexts/%3A.shop%3A/subjects/orders/versions", "/subjects/:.shop:orders/versions"),
            ("GET", "/contexts/.shop/subjects/orders/versions", "/subjects/:.shop:orders/versions"),
            ("GET", "/contexts/.shop/subjects/orders/versions/", "/subjects/:.shop:orders/versions"),
            ("GET", "/contexts/shop/subjects/orders/versions/1", "/subjects/:.shop:orders/versions/1"),
            ("GET", "/contexts/.shop/subjects/orders/versions/1/schema", "/subjects/:.shop:orders/versions/1/schema"),
            ("GET", "/contexts/.shop/subjects/orders/versions/9", "/subjects/:.shop:orders/versions/9"),
            ("GET", "/contexts/.shop/subjects/none/versions", "/subjects/:.shop:none/versions"),
            ("GET", "/contexts/.shop/subjects/a%2Fb/versions", "/subjects/:.shop:a%2Fb/versions"),
            # Qualified names keep their context.
            ("GET", "/contexts/.shop/subjects/:.twin:a/versions", "/subjects/:.twin:a/versions"),
            ("GET", "/contexts/.shop/subjects/%3A.:orders/versions", "/subjects/orders/versions"),
            ("GET", "/contexts/./subjects/orders/versions", "/subjects/orders/versions"),
            ("GET", "/contexts/.shop/schemas", "/schemas?subjectPrefix=:.shop:"),
            ("GET", "/contexts/.shop/schemas?subjectPrefix=on", "/schemas?subjectPrefix=:.shop:on"),
            ("GET", "/contexts/.shop/schemas/ids/1", "/schemas/ids/1?subject=:.shop:"),
            ("GET", "/contexts/.shop/schemas/ids/1?subject=orders", "/schemas/ids/1?subject=:.shop:orders"),
            ("GET", "/contexts/.shop/schemas/ids/1/schema", "/schemas/ids/1/schema?subject=:.shop:"),
            ("GET", "/contexts/.shop/schemas/ids/1/versions", "/schemas/ids/1/versions?subject=:.shop:"),
            ("GET", "/contexts/.shop/schemas/ids/1/subjects", "/schemas/ids/1/subjects?subject=:.shop:"),
            ("GET", "/contexts/.shop/schemas/ids/99", "/schemas/ids/99"),
            ("GET", "/contexts/.shop/schemas/types", "/schemas/types"),
            ("GET", "/contexts/.shop/config", "/config/:.shop:"),
            ("GET", "/contexts/.shop/config?defaultToGlobal=true", "/config/:.shop:?defaultToGlobal=true"),
            ("GET", "/contexts/.shop/config/orders", "/config/:.shop:orders"),
            ("GET", "/contexts/./config", "/config"),
            ("GET", "/contexts/.shop/mode", "/mode/:.shop:"),
            ("GET", "/contexts/.shop/mode/orders?defaultToGlobal=true", "/mode/:.shop:orders?defaultToGlobal=true"),
            ("GET", "/contexts/./mode", "/mode"),
            ("GET", "/contexts/.shop/contexts", "/contexts"),
            ("GET", "/contexts/.shop", "/"),
            ("GET", "/contexts/.shop/nothing", "/nothing"),
            ("DELETE", "/contexts/.shop/subjects/none", "/subjects/:.shop:none"),
        ]:
            with case(f"{method} {path}"):
                called, expected = registry.call(method, path), registry.call(method, same_as)
                assert (called.status, called.text) == (expected.status, expected.text)


def test_changes_below_a_context_apply_to_it(registry: Registry) -> None:
    path = "/contexts/own/subjects/s"
    assert registry.post(f"{path}/versions", {"schema": STRING}).json["id"] == 1
    assert registry.get("/subjects/:.own:s/versions").json == [1]
    assert registry.post(path, {"schema": STRING}).json["subject"] == ":.own:s"
    check = registry.post("/contexts/own/compatibility/subjects/s/versions/latest", {"schema": '"int"'})
    assert check.json == {"is_compatible": False}
    registry.put("/contexts/own/config/s", {"compatibility": "NONE"})
    assert registry.get("/config/:.own:s").json == {"compatibilityLevel": "NONE"}
    registry.put("/contexts/own/mode", {"mode": "READONLY"})
    assert registry.get("/mode/:.own:").json == {"mode": "READONLY"}
    assert registry.delete("/contexts/own/mode").json == {"mode": "READONLY"}
    assert registry.delete(path).json == [1]


def test_invalid_context_name_is_rejected_with_the_reason(registry: Registry) -> None:
    with all_cases() as case:
        for path, reason in [
            ("/contexts/a:b/subjects", "colon"),
            ("/contexts/:.a:b/subjects/orders/versions", "colon"),
            ("/contexts/::/subjects", "colon"),
            (f"/contexts/{'a' * NAME_BYTES_MAX}", f"{NAME_BYTES_MAX} bytes"),
        ]:
            with case(path):
                found = registry.get(path).error
                assert found[:2] == (400, 400)
                assert reason in found[2]


def test_unqualified_subjects_and_ids_are_searched_in_all_contexts(registry: Registry) -> None:
    with all_cases() as case:
        for path, expected in [
            # An unqualified subject is searched in the default context first.
            ("/subjects/only/versions/1", {"subject": ":.shop:only", "version": 1, "id": 2}),
            ("/subjects/only/versions/latest", {"subject": ":.shop:only", "version": 1, "id": 2}),
            ("/subjects/orders/versions/1", {"subject": "orders", "version": 1, "id": 1}),
            ("/subjects/:.twin:only/versions/1", None),
            ("/subjects/:.shop:only/versions/2", None),
            ("/subjects/:.shop:only/versions/1", {"subject": ":.shop:only", "version": 1, "id": 2}),
            # The same applies to an id with such a subject. Without a match the id belongs to the default context.
            ("/schemas/ids/2?subject=only", {"subject": ":.shop:only", "version": 1, "schema": BYTES}),
            ("/schemas/ids/2?subject=orders", {"subject": "orders", "version": 2, "schema": USER_2}),
            ("/schemas/ids/2?subject=none", {"schema": USER_2}),
            ("/schemas/ids/1?subject=:.shop:orders", {"subject": ":.shop:orders", "version": 1, "schema": STRING}),
            ("/schemas/ids/2?subject=:.shop:", {"schema": BYTES}),
            ("/schemas/ids/2?subject=:.shop", {"schema": BYTES}),
            ("/schemas/ids/2?subject=:.shop:orders", None),
            ("/schemas/ids/2?subject=:.none:", None),
            ("/schemas/ids/2?subject=:.:only", {"subject": ":.shop:only", "version": 1, "schema": BYTES}),
        ]:
            with case(path):
                response = registry.get(path)
                if expected is None:
                    assert response.status == 404
                    continue
                keys = {"subject", "version", *(expected.keys() & {"id", "schema"})}
                assert {key: value for key, value in response.json.items() if key in keys} == expected


def test_lookup_searches_all_contexts(registry: Registry) -> None:
    found = registry.post("/subjects/only", {"schema": BYTES}).json
    assert (found["subject"], found["version"]) == (":.shop:only", 1)
    assert registry.post("/subjects/orders", {"schema": STRING}).json["subject"] == ":.shop:orders"
    assert registry.post("/subjects/only", {"schema": '"int"'}).error[1] == 40401
    assert registry.post("/subjects/orders", {"schema": '"int"'}).error[1] == 40403
    assert registry.post("/subjects/:.twin:only", {"schema": BYTES}).error[1] == 40401


def test_first_context_with_the_subject_wins(registry: Registry) -> None:
    for context in ("many-b", "many-a", "many-c"):
        registry.registered(f":.{context}:popular", STRING)
    assert registry.get("/subjects/popular/versions/1").json["subject"] == ":.many-a:popular"
    registry.delete("/subjects/:.many-a:popular")
    assert registry.get("/subjects/popular/versions/1").json["subject"] == ":.many-b:popular"
    assert registry.get("/subjects/popular/versions/1?deleted=true").json["subject"] == ":.many-a:popular"


def test_versions_are_listed_and_deleted_in_one_context_only(registry: Registry) -> None:
    assert registry.get("/subjects/only/versions").error[1] == 40401
    assert registry.delete("/subjects/only").error[1] == 40401
    assert registry.delete("/subjects/only/versions/1").error[1] == 40401
    assert registry.get("/subjects/only/versions/1/referencedby").json == []


def test_unqualified_reference_means_the_context_of_its_schema(registry: Registry) -> None:
    registry.registered(":.own:target", FIXED)
    registry.registered("target", FIXED.replace("4", "5"))
    inside = {"name": "n.Id", "subject": "target", "version": 1}
    outside = {"name": "n.Id", "subject": ":.:target", "version": 1}
    for name, reference, size in (("inside", inside, 4), ("outside", outside, 5)):
        schema_id = registry.registered(f":.own:{name}", USES_FIXED, references=[reference])
        stored = registry.get(f"/schemas/ids/{schema_id}?subject=:.own:").json
        assert stored["references"] == [reference]
        resolved = registry.get(f"/schemas/ids/{schema_id}?subject=:.own:&format=resolved").json["schema"]
        assert f'"size":{size}' in resolved
    inside_id = registry.get("/subjects/:.own:inside/versions/1").json["id"]
    outside_id = registry.get("/subjects/:.own:outside/versions/1").json["id"]
    assert registry.get("/subjects/:.own:target/versions/1/referencedby").json == [inside_id]
    assert registry.get("/subjects/target/versions/1/referencedby").json == [outside_id]
    assert registry.delete("/subjects/target").error[1] == 42206


def test_deleted_context_never_reuses_ids(registry: Registry) -> None:
    assert registry.registered(":.brief:s", STRING) == 1
    registry.put("/config/:.brief:", {"compatibility": "FULL"})
    registry.put("/mode/:.brief:", {"mode": "READWRITE"})
    refused = (422, 42211, "The specified context '.brief' is not empty.")
    assert registry.delete("/contexts/.brief").error == refused
    registry.delete("/subjects/:.brief:s")
    assert registry.delete("/contexts/brief").error == refused
    registry.delete("/subjects/:.brief:s?permanent=true")
    assert ".brief" in registry.get("/contexts").json
    deleted = registry.delete("/contexts/.brief")
    assert (deleted.status, deleted.text) == (204, "")
    assert ".brief" not in registry.get("/contexts").json
    assert registry.get("/config/:.brief:").error[1] == 40408
    assert registry.get("/mode/:.brief:").error[1] == 40409
    assert registry.registered(":.brief:s", STRING) == 2
    assert ".brief" in registry.get("/contexts").json


def test_delete_with_invalid_context_deletes_nothing(registry: Registry) -> None:
    assert registry.delete("/contexts/.").error[:2] == (422, 42211)
    assert registry.delete("/contexts/.unknown").status == 204
    assert registry.delete("/contexts/a:b").error[:2] == (400, 400)


def test_invalid_subjects_are_rejected(registry: Registry) -> None:
    with all_cases() as case:
        for name in ["__GLOBAL", "__EMPTY", "a%00b", ":.c:__GLOBAL", ":.__GLOBAL:a", ":.::.c:a", ":*:a", ":.c%0A:a"]:
            with case(name):
                for response in (registry.register(name, STRING), registry.get(f"/subjects/{name}/versions")):
                    assert response.error[:2] == (422, 42208)
                    assert response.error[2].endswith("is not a valid.")


def test_unstorable_texts_are_not_found(registry: Registry) -> None:
    with all_cases() as case:
        for path, expected in [
            ("/subjects?subjectPrefix=:.%00:", []),
            ("/subjects?subjectPrefix=%00", []),
            ("/subjects?subjectPrefix=:*:%0A", []),
            ("/schemas?subjectPrefix=:.%00:a&aliases=true", []),
            ("/schemas/ids/1?subject=:.%00:", 40403),
            ("/schemas/ids/1?subject=:.%00:a", 40403),
            ("/schemas/ids/1/versions?subject=:.a%1F:", 40403),
            ("/contexts/%00/subjects", 400),
            ("/contexts?contextPrefix=%00", []),
            ("/mode/:.%00:", 42208),
            ("/config/:.%00:a", 42208),
        ]:
            with case(path):
                response = registry.get(path)
                assert response.error[1] == expected if isinstance(expected, int) else response.json == expected
