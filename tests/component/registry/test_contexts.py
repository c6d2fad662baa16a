"""Contexts: subjects and ids of their own, calls in a context, and what is looked for across them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.cases import all_cases
from support.registry.registry_calls import STRING, USER_1, USER_2, Registry, RegistryInProcess, registry_in_process

BYTES = '"bytes"'
FIXED = '{"type":"fixed","name":"Id","namespace":"n","size":4}'
USES_FIXED = '{"type":"record","name":"R","fields":[{"name":"id","type":"n.Id"}]}'


@pytest.fixture
def registry(database_url: str) -> Iterator[RegistryInProcess]:
    """The default context holds `orders` 1 (id 1) and 2 (id 2), `.shop` `orders` 1 (id 1) and `only` 1 (id 2)."""
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


def test_a_content_has_an_id_in_each_context_and_one_guid(registry: Registry) -> None:
    first = registry.register(":.twin:a", USER_2).json
    assert (first["id"], registry.register("orders", USER_2).json["id"]) == (1, 2)
    assert first["guid"] == registry.get("/schemas/ids/2").json["guid"]
    assert registry.get(f"/schemas/guids/{first['guid']}/ids").json == [
        {"context": ".", "id": 2},
        {"context": ".twin", "id": 1},
    ]


def test_a_context_is_listed_once_it_has_held_a_subject(registry: Registry) -> None:
    assert {".", ".shop"} <= set(registry.get("/contexts").json)
    assert registry.get("/contexts").json[0] == "."
    assert registry.get("/contexts?contextPrefix=.sh").json == [".shop"]
    assert registry.get("/contexts?offset=1&limit=1").json == [".shop"]
    registry.put("/config/:.asked:", {"compatibility": "FULL"})
    assert ".asked" not in registry.get("/contexts").json


def test_lists_of_subjects(registry: Registry) -> None:
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


def test_a_call_in_a_context_is_the_call_with_a_qualified_subject(registry: Registry) -> None:
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
            # What names its context keeps it.
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


def test_writing_in_a_context(registry: Registry) -> None:
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


def test_a_context_has_no_colon_in_its_name(registry: Registry) -> None:
    with all_cases() as case:
        for path in ["/contexts/a:b/subjects", "/contexts/:.a:b/subjects/orders/versions", "/contexts/::/subjects"]:
            with case(path):
                assert registry.get(path).problem[:2] == (400, 400)


def test_where_a_subject_and_an_id_are_found(registry: Registry) -> None:
    with all_cases() as case:
        for path, expected in [
            # A subject without a context is looked for in the default one, then in the others.
            ("/subjects/only/versions/1", {"subject": ":.shop:only", "version": 1, "id": 2}),
            ("/subjects/only/versions/latest", {"subject": ":.shop:only", "version": 1, "id": 2}),
            ("/subjects/orders/versions/1", {"subject": "orders", "version": 1, "id": 1}),
            ("/subjects/:.twin:only/versions/1", None),
            ("/subjects/:.shop:only/versions/2", None),
            ("/subjects/:.shop:only/versions/1", {"subject": ":.shop:only", "version": 1, "id": 2}),
            # An id under such a subject likewise; if no subject has it, it is the default context's.
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
                answer = registry.get(path)
                if expected is None:
                    assert answer.status == 404
                    continue
                keys = {"subject", "version", *(expected.keys() & {"id", "schema"})}
                assert {key: value for key, value in answer.json.items() if key in keys} == expected


def test_a_schema_is_looked_up_in_all_contexts(registry: Registry) -> None:
    found = registry.post("/subjects/only", {"schema": BYTES}).json
    assert (found["subject"], found["version"]) == (":.shop:only", 1)
    assert registry.post("/subjects/orders", {"schema": STRING}).json["subject"] == ":.shop:orders"
    assert registry.post("/subjects/only", {"schema": '"int"'}).problem[1] == 40401
    assert registry.post("/subjects/orders", {"schema": '"int"'}).problem[1] == 40403
    assert registry.post("/subjects/:.twin:only", {"schema": BYTES}).problem[1] == 40401


def test_the_first_of_several_contexts_that_have_a_subject_answers(registry: Registry) -> None:
    for context in ("many-b", "many-a", "many-c"):
        registry.registered(f":.{context}:popular", STRING)
    assert registry.get("/subjects/popular/versions/1").json["subject"] == ":.many-a:popular"
    registry.delete("/subjects/:.many-a:popular")
    assert registry.get("/subjects/popular/versions/1").json["subject"] == ":.many-b:popular"
    assert registry.get("/subjects/popular/versions/1?deleted=true").json["subject"] == ":.many-a:popular"


def test_versions_are_listed_and_deleted_in_the_named_context_only(registry: Registry) -> None:
    assert registry.get("/subjects/only/versions").problem[1] == 40401
    assert registry.delete("/subjects/only").problem[1] == 40401
    assert registry.delete("/subjects/only/versions/1").problem[1] == 40401
    assert registry.get("/subjects/only/versions/1/referencedby").json == []


def test_a_reference_is_in_the_context_of_its_schema_unless_it_says_another(registry: Registry) -> None:
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
    assert registry.delete("/subjects/target").problem[1] == 42206


def test_an_empty_context_can_be_deleted_and_never_gives_an_id_twice(registry: Registry) -> None:
    assert registry.registered(":.brief:s", STRING) == 1
    registry.put("/config/:.brief:", {"compatibility": "FULL"})
    registry.put("/mode/:.brief:", {"mode": "READWRITE"})
    refused = (422, 42211, "The specified context '.brief' is not empty.")
    assert registry.delete("/contexts/.brief").problem == refused
    registry.delete("/subjects/:.brief:s")
    assert registry.delete("/contexts/brief").problem == refused
    registry.delete("/subjects/:.brief:s?permanent=true")
    assert ".brief" in registry.get("/contexts").json
    deleted = registry.delete("/contexts/.brief")
    assert (deleted.status, deleted.text) == (204, "")
    assert ".brief" not in registry.get("/contexts").json
    assert registry.get("/config/:.brief:").problem[1] == 40408
    assert registry.get("/mode/:.brief:").problem[1] == 40409
    assert registry.registered(":.brief:s", STRING) == 2
    assert ".brief" in registry.get("/contexts").json


def test_what_is_no_context_deletes_nothing(registry: Registry) -> None:
    assert registry.delete("/contexts/.").problem[:2] == (422, 42211)
    assert registry.delete("/contexts/.unknown").status == 204
    assert registry.delete("/contexts/a:b").problem[:2] == (400, 400)


def test_texts_that_are_no_subjects(registry: Registry) -> None:
    with all_cases() as case:
        for name in ["__GLOBAL", "__EMPTY", "a%00b", ":.c:__GLOBAL", ":.__GLOBAL:a", ":.::.c:a", ":*:a", ":.c%0A:a"]:
            with case(name):
                for answer in (registry.register(name, STRING), registry.get(f"/subjects/{name}/versions")):
                    assert answer.problem[:2] == (422, 42208)
                    assert answer.problem[2].endswith("is not a valid.")


def test_texts_that_no_database_holds(registry: Registry) -> None:
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
                answer = registry.get(path)
                assert answer.problem[1] == expected if isinstance(expected, int) else answer.json == expected
