"""The pages about schemas, with a registry on a local port."""

from __future__ import annotations

import html
import json
import random
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from flask.testing import FlaskClient
from werkzeug.wrappers import Request, Response

from headrace.console import registry_reader
from headrace.console.registry_reader import (
    HISTORY_MAX,
    REQUESTS_MAX,
    RegistryBusy,
    RegistryReader,
    drop_oldest,
    reference_subject,
)
from headrace.console.sources import Reading, SourceReader
from headrace.registry.client import SchemaReference
from headrace.registry.errors import RegistryUnavailable, ServiceError
from headrace.settings import RegistrySettings, Settings
from support.console import SAME_ORIGIN, console_world, user_line
from support.console_schemas import EVIL, ORDER_3, field, record, register_samples
from support.registry.served_registry import ServedRegistry, serve_registry

READER = user_line("lea") + "grant lea read orders*\n"


@pytest.fixture(scope="module")
def served(sqlite_template: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedRegistry]:
    path = tmp_path_factory.mktemp("registry") / "registry.db"
    with serve_registry(sqlite_template.copy_to(path)) as registry:
        register_samples(registry)
        yield registry


@pytest.fixture
def registry(served: ServedRegistry) -> Iterator[ServedRegistry]:
    yield served
    served.respond = lambda _: None


def settings_of(url: str) -> Settings:
    return Settings(registry=RegistrySettings(url=url))


@pytest.fixture
def client(registry: ServedRegistry, tmp_path: Path) -> FlaskClient:
    return console_world(tmp_path, settings=settings_of(registry.url)).client()


def rows(client: FlaskClient, path: str) -> list[dict[str, Any]]:
    response = client.get(path)
    assert response.status_code == 200, response.text
    return list(json.loads(response.text)["rows"])


def words(page: str) -> str:
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page)))


def test_list_has_the_subjects_of_all_contexts(client: FlaskClient) -> None:
    found = {row["subject"]: row for row in rows(client, "/schemas?as=json")}
    assert set(found) >= {"orders-value", ":.eu:orders-value", "secret-value", "orders-refers"}
    assert (found["orders-value"]["version"], found["orders-value"]["fields"]) == (3, 6)
    assert found["orders-value"]["registered"] is not None


@pytest.mark.parametrize(
    ("query", "subjects", "found_in"),
    [
        ("EU:orders", [":.eu:orders-value"], ""),
        ("currency", ["orders-value"], "field total.currency"),
        ("WHO pays", ["orders-value"], "doc of customer: who pays"),
        ("hidden_salary", ["secret-value"], "field hidden_salary"),
    ],
)
def test_search_finds_subjects_fields_and_docs(
    client: FlaskClient, query: str, subjects: list[str], found_in: str
) -> None:
    found = rows(client, f"/schemas?as=json&q={query}")
    assert [row["subject"] for row in found] == subjects
    assert found_in in found[0]["found"]


def test_search_for_an_id_finds_old_versions(client: FlaskClient, registry: ServedRegistry) -> None:
    with registry.client as direct:
        old = direct.version("orders-value", 1).schema_id
    assert "orders-value version 1" in words(client.get(f"/schemas?q={old}").text)


def test_subject_page_names_the_versions_that_changed_each_field(client: FlaskClient) -> None:
    found = {row["field"]: row for row in rows(client, "/schemas/subject?name=orders-value&as=json")}
    blame = {path: (row["since"], row["changed"]) for path, row in found.items()}
    assert blame == {
        "id": (1, 2),
        "customer": (1, 3),
        "total": (1, 1),
        "total.cents": (1, 2),
        "total.currency": (1, 1),
        "note": (3, 3),
    }
    assert found["customer"]["former"] == "buyer"


def test_versions_are_those_of_the_subject_only(client: FlaskClient) -> None:
    found = rows(client, "/schemas/subject?name=orders-value&show=versions&as=json")
    assert [row["version"] for row in found] == [3, 2, 1]
    assert [row["changes"] for row in found] == ["1 added, 1 changed", "1 renamed, 2 changed", ""]
    text = client.get("/schemas/text?name=orders-value&version=1")
    assert json.loads(text.text)["name"] == "Order"
    assert text.headers["Content-Disposition"].startswith("attachment")
    assert text.mimetype == "application/octet-stream"


def test_diff_shows_a_rename_as_one_row_and_findings_under_their_field(client: FlaskClient) -> None:
    found = {row["field"]: row for row in rows(client, "/schemas/diff?name=orders-value&from=1&to=2&as=json")}
    assert {path: row["mark"] for path, row in found.items()} == {
        "id": "changed",
        "customer": "renamed",
        "total": "same",
        "total.cents": "changed",
        "total.currency": "same",
    }
    assert "FORWARD" in found["total.cents"]["findings"]
    assert "BACKWARD" not in json.dumps(found)
    assert found["customer"]["findings"].startswith("FORWARD")  # version 1 does not find its field `buyer`
    page = client.get("/schemas/diff?name=orders-value&from=1&to=2").text
    assert "buyer → customer" in page
    assert "id int → bigint" in page
    assert "1 renamed, 2 changed" in words(page)


def test_diff_compares_any_two_versions_as_text_too(client: FlaskClient) -> None:
    newest = words(client.get("/schemas/diff?name=orders-value").text)
    assert "version 2 → 3" in newest
    assert "+ note string" in newest
    back = words(client.get("/schemas/diff?name=orders-value&from=3&to=1").text)
    assert "version 3 → 1" in back
    assert "0 added, 1 removed, 1 renamed, 2 changed" in back
    text = client.get("/schemas/diff?name=orders-value&show=text").text
    assert "<ins>" in text
    assert client.get("/schemas/diff?name=orders-value&from=9&to=x").status_code == 200


def test_texts_of_authors_are_never_markup(client: FlaskClient) -> None:
    name = {"name": f"a/b {EVIL}"}
    pages = [
        client.get("/schemas"),
        client.get("/schemas?q=script"),
        client.get("/schemas/subject", query_string=name),
        client.get("/schemas/subject?name=orders-value"),
        client.get("/schemas/diff?name=orders-value"),
        client.get("/schemas/diff?name=orders-value&show=text"),
        client.get("/schemas/try", query_string=name),
    ]
    for page in pages:
        assert page.status_code == 200
        assert "<script>alert" not in page.text
        assert "\u202e" not in page.text
    assert "&lt;script&gt;alert(1)" in pages[4].text


def test_users_see_only_the_schemas_that_they_may_read(registry: ServedRegistry, tmp_path: Path) -> None:
    client = console_world(tmp_path, READER, settings_of(registry.url)).signed_in("lea")
    assert {row["subject"] for row in rows(client, "/schemas?as=json")} == {
        "orders-value",
        "orders-value-2",
        "orders-refers",
    }
    assert rows(client, "/schemas?as=json&q=hidden_salary") == []
    for path in ("subject", "diff", "text", "try"):
        assert client.get(f"/schemas/{path}?name=secret-value").status_code == 403
        assert client.get(f"/schemas/{path}?name=no-such-subject").status_code == 403
    with registry.client as direct:
        hidden = direct.version("secret-value", 1).schema_id
    assert "secret-value" not in client.get(f"/schemas?q={hidden}").text
    page = client.get("/schemas/diff?name=orders-refers").text
    assert "which you may not read" in page
    assert "hidden_salary" not in page
    tried = try_schema(client, "orders-refers", record("Refers", field("held", "Secret")))
    assert "which you may not read" in tried


def try_schema(client: FlaskClient, name: str, text: str) -> str:
    form = client.get("/schemas/try", query_string={"name": name}).text
    found = re.search(r'action="/schemas/try[^>]*>\s*<input type="hidden" name="form_token" value="(\w+)"', form)
    assert found is not None
    response = client.post(
        "/schemas/try",
        query_string={"name": name},
        data={"form_token": found[1], "schema": text},
        content_type="multipart/form-data",
        headers=SAME_ORIGIN,
    )
    assert response.status_code == 200, response.text
    assert response.headers["Cache-Control"] == "no-store"
    return response.text


def test_tried_schema_is_checked_and_not_stored(client: FlaskClient, registry: ServedRegistry) -> None:
    required = record("Order", field("id", "long"), field("customer"), field("added"))
    page = words(try_schema(client, "orders-value", required))
    assert "The registry refuses this schema" in page
    assert 'BACKWARD Field "added" is not in version 3 and has no default' in page
    page = words(try_schema(client, "orders-value", ORDER_3.replace("who pays", "who <b>pays</b>")))
    assert "The registry accepts this schema." in page
    with registry.client as direct:
        assert direct.versions("orders-value") == [1, 2, 3]


@pytest.mark.parametrize("text", ["", "{", '{"type": "record"}', "[" * 5000, EVIL, "\x00", '"nope"'])
def test_tried_text_that_is_no_schema_is_explained(client: FlaskClient, text: str) -> None:
    page = try_schema(client, "orders-value", text)
    assert "This is no Avro schema" in page
    assert "<script>alert" not in page


def test_schema_of_a_megabyte_is_tried(client: FlaskClient) -> None:
    large = record("Order", field("id", "long", doc="x" * 990_000), field("customer", aliases=["buyer"]))
    assert "The registry accepts this schema." in words(try_schema(client, "orders-value", large))
    token = {"form_token": "x", "schema": "y" * 3_000_000}
    response = client.post("/schemas/try?name=orders-value", data=token, headers=SAME_ORIGIN)
    assert response.status_code == 413


def test_form_without_token_is_rejected(client: FlaskClient) -> None:
    response = client.post("/schemas/try?name=orders-value", data={"schema": "{}"}, headers=SAME_ORIGIN)
    assert response.status_code == 403


def test_missing_subject_is_not_found(client: FlaskClient) -> None:
    for path in ("subject", "diff", "text"):
        assert client.get(f"/schemas/{path}?name=nope").status_code == 404
        assert client.get(f"/schemas/{path}").status_code == 404
        assert client.get(f"/schemas/{path}?name=%00").status_code == 404


def test_pages_state_that_the_registry_is_down(tmp_path: Path) -> None:
    client = console_world(tmp_path, settings=settings_of("http://127.0.0.1:1")).client()
    for path in ("/schemas", "/schemas?q=17", "/schemas/subject?name=a", "/schemas/diff?name=a", "/schemas/try?name=a"):
        page = client.get(path)
        assert page.status_code == 200
        assert "Not known:" in page.text


def test_registry_with_other_responses_is_not_known(registry: ServedRegistry, tmp_path: Path) -> None:
    client = console_world(tmp_path, settings=settings_of(registry.url)).client()

    def respond(request: Request) -> Response | None:
        return Response('[{"id": 1, "schema": 7}]', mimetype="application/json") if request.method == "GET" else None

    registry.respond = respond
    for path in ("/schemas/subject?name=a", "/schemas/diff?name=a"):
        page = client.get(path)
        assert page.status_code == 200
        assert "Not known:" in page.text
    assert client.get("/schemas").status_code == 200


def test_other_schema_types_are_listed_with_their_text(registry: ServedRegistry, tmp_path: Path) -> None:
    listed = {"subject": "p", "version": 1, "id": 7, "schemaType": "PROTOBUF", "schema": 'syntax = "proto3";'}
    registry.respond = lambda request: (
        Response(json.dumps([listed, {**listed, "version": 2}]), mimetype="application/json")
        if request.path == "/schemas"
        else None
    )
    client = console_world(tmp_path, settings=settings_of(registry.url)).client()
    assert "its type is PROTOBUF" in client.get("/schemas/diff?name=p").text.replace("Its", "its")
    assert "PROTOBUF" in client.get("/schemas/subject?name=p").text
    assert client.get("/schemas/text?name=p").text == 'syntax = "proto3";'


def test_changed_references_are_listed(client: FlaskClient, registry: ServedRegistry) -> None:
    refers = record("Refers", field("held", ["null", "Secret"], default=None))
    reference = {"name": "Secret", "subject": "secret-value", "version": 1}
    with registry.client as direct:
        direct.register("shared-value", record("Refers"))
        body = {"schema": refers, "references": [reference]}
        direct.call("POST", "/subjects/shared-value/versions", body=body)
    page = words(client.get("/schemas/diff?name=shared-value").text)
    assert "+ Secret from secret-value version 1" in page
    assert "+ held struct<hidden_salary:string>" in page


def test_random_urls_never_fail(client: FlaskClient) -> None:
    chosen = random.Random(36)
    names = ("orders-value", ":.eu:orders-value", ":.eu:", ":.", "..", "a/b", "\x00", "\ud800", EVIL, "x" * 2000, "")
    values = (
        "1",
        "3",
        "-1",
        "0",
        "9" * 30,
        "latest",
        "csv",
        "json",
        "text",
        "versions",
        "all",
        "-field",
        "\u202e",
        "%",
    )
    statuses = set()
    for _ in range(150):
        page = chosen.choice(("", "/subject", "/diff", "/try", "/text", "/nope"))
        query = {key: chosen.choice(values) for key in ("q", "from", "to", "show", "as", "sort", "page", "version")}
        some = {key: value for key, value in query.items() if chosen.random() < 0.4}
        url = f"/schemas{page}?{urlencode({'name': chosen.choice(names), **some}, errors='replace')}"
        statuses.add(status := client.get(url).status_code)
        assert status < 500, url
    assert {200, 404} <= statuses


def test_requests_after_one_without_a_response_fail_at_once(tmp_path: Path) -> None:
    reader = RegistryReader(settings_of("http://127.0.0.1:1"))
    with pytest.raises(RegistryUnavailable) as first:
        reader.subjects()
    with pytest.raises(RegistryUnavailable) as second:
        reader.history("a")
    assert second.value is first.value


def test_reads_of_the_registry_are_limited(registry: ServedRegistry) -> None:
    reader = RegistryReader(settings_of(registry.url))
    release, started = threading.Event(), threading.Semaphore(0)

    def respond(request: Request) -> None:
        started.release()
        release.wait(20)

    registry.respond = respond
    threads = [threading.Thread(target=reader.history, args=(f"orders-{n}",)) for n in range(REQUESTS_MAX)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert started.acquire(timeout=20)
    with pytest.raises(RegistryBusy):
        reader.subjects()
    release.set()
    for thread in threads:
        thread.join()
    assert "orders-value" in reader.subjects()


def test_only_the_newest_versions_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {number: {"schema": "x" * number} for number in range(1, HISTORY_MAX + 4)}
    assert drop_oldest(found) == 3
    assert min(found) == 4
    monkeypatch.setattr(registry_reader, "HISTORY_CHARS_MAX", 10)
    found = {number: {"schema": "x" * 9} for number in (1, 2, 3)}
    assert drop_oldest(found) == 1
    assert sorted(found) == [2, 3]


def test_large_schema_is_a_download(registry: ServedRegistry, tmp_path: Path) -> None:
    large = {"subject": "l", "id": 7, "schema": json.dumps({"type": "string", "doc": "x" * 1_000_000})}
    versions = [{**large, "version": number} for number in (1, 2)]
    registry.respond = lambda request: (
        Response(json.dumps(versions), mimetype="application/json") if request.path == "/schemas" else None
    )
    client = console_world(tmp_path, settings=settings_of(registry.url)).client()
    for path in ("subject", "diff"):
        assert "text is too large" in client.get(f"/schemas/{path}?name=l").text
    assert len(client.get("/schemas/text?name=l&version=1").data) > 1_000_000


def test_subjects_named_like_other_reads_are_kept_apart(registry: ServedRegistry, tmp_path: Path) -> None:
    client = console_world(tmp_path, settings=settings_of(registry.url)).client()
    with registry.client as direct:
        direct.register("settings orders-value", record("Mixed", field("x")))
    for name in ("orders-value", "settings orders-value", "orders-value"):
        assert client.get("/schemas/subject", query_string={"name": name}).status_code == 200


def test_lists_of_several_pages_are_read_completely(registry: ServedRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_reader, "LISTED_MAX", 2)
    reader = RegistryReader(settings_of(registry.url))
    assert [one.version for one in reader.history("orders-value").versions] == [1, 2, 3]
    index = reader.index()
    assert index.is_complete
    assert set(index.subjects) == set(reader.subjects())
    monkeypatch.setattr(registry_reader, "INDEXED_CHARS_MAX", 0)
    cut = reader.index()
    assert not cut.is_complete
    assert len(cut.subjects) == 2


def test_schemas_are_indexed_again_after_a_new_version(registry: ServedRegistry) -> None:
    reader = RegistryReader(settings_of(registry.url))
    with registry.client as direct:
        direct.register("growing-value", record("G", field("first")))
        before = reader.index().subjects
        direct.register("growing-value", record("G", field("first"), field("second", default="")))
    after = reader.index().subjects
    assert [one.path for one in after["growing-value"].fields] == ["first", "second"]
    assert after["orders-value"] is before["orders-value"]
    assert after["orders-value"].version == 3


@pytest.mark.parametrize(
    ("subject", "referenced", "qualified"),
    [("a", "b", "b"), (":.eu:a", "b", ":.eu:b"), (":.eu:a", ":.us:b", ":.us:b"), ("a", ":.us:b", ":.us:b")],
)
def test_reference_without_a_context_is_in_that_of_its_schema(subject: str, referenced: str, qualified: str) -> None:
    assert reference_subject(subject, SchemaReference("T", referenced, 1)) == qualified


def test_indirect_references_require_permission_too(registry: ServedRegistry, tmp_path: Path) -> None:
    with registry.client as direct:
        for subject, name, used in (("orders-middle", "Middle", "Secret"), ("orders-outer", "Outer", "Middle")):
            owner = "secret-value" if used == "Secret" else "orders-middle"
            body = {
                "schema": record(name, field("held", used)),
                "references": [{"name": used, "subject": owner, "version": 1}],
            }
            direct.call("POST", f"/subjects/{subject}/versions", body=body)
        versions = RegistryReader(settings_of(registry.url)).history("orders-outer").versions
    assert versions[0].used_subjects == {"orders-middle", "secret-value"}
    client = console_world(tmp_path, READER, settings_of(registry.url)).signed_in("lea")
    assert "secret-value, which you may not read" in client.get("/schemas/diff?name=orders-outer").text


@pytest.mark.parametrize("body", ["{}", '["a"]', "[1]", '[{"id": 1}]', "null", '"x"'])
def test_response_that_is_no_list_of_schemas_is_an_error(registry: ServedRegistry, body: str) -> None:
    registry.respond = lambda _: Response(body, mimetype="application/json")
    reader = RegistryReader(settings_of(registry.url))
    for read in (reader.index, lambda: reader.history("a")):
        with pytest.raises(ServiceError):
            read()


@pytest.mark.parametrize(
    ("failing", "path"),
    [
        ("registry fields", "/schemas?q=total"),
        ("subject fields", "/schemas/subject?name=orders-value"),
        ("schema diff", "/schemas/diff?name=orders-value"),
    ],
)
def test_export_whose_rows_are_not_known_is_refused(
    failing: str, path: str, client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = SourceReader.read

    def fail(reader: SourceReader, name: str, *args: Any, **more: Any) -> Reading[Any]:
        if name.startswith(failing):
            return Reading(None, "no response within 2 s", 1)
        return read(reader, name, *args, **more)

    monkeypatch.setattr(SourceReader, "read", fail)
    assert client.get(path).status_code == 200
    assert client.get(f"{path}&as=json").status_code == 503
