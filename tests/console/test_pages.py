"""The pages about completeness, on stored verdicts of counts with injected faults."""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path
from urllib.parse import quote, unquote

import pytest
from flask import url_for
from flask.testing import FlaskClient
from markupsafe import escape

from headrace.audit.storage.store import AuditStore
from headrace.audit.window import WINDOW_MS
from headrace.console.formats import visible
from headrace.console.headline import headline
from headrace.console.pages import now
from headrace.console.sources import Reading
from headrace.pipeline import storage
from headrace.pipeline.status.finding import PlatformStatus, StatusFact, finding
from headrace.settings import KafkaSettings, LoaderSettings, RegistrySettings, Settings
from support.audit_story import FAULTS, TOPICS, fill_store
from support.console import NOW_MS, ConsoleWorld, console_world
from support.console_urls import is_refused_export, random_urls

CALM = PlatformStatus(NOW_MS, (), (StatusFact("registry", "up"),))


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("counted")
    with AuditStore(directory / "audit.db") as store:
        fill_store(store, NOW_MS)
    return directory


@pytest.fixture
def world(counted: Path, monkeypatch: pytest.MonkeyPatch) -> ConsoleWorld:
    monkeypatch.setattr(now, "platform_status", lambda settings, **_: CALM)
    return console_world(counted)


@pytest.fixture
def client(world: ConsoleWorld) -> FlaskClient:
    return world.client()


def text_of(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


def test_first_sentence_counts_the_topics_with_missing_messages(client: FlaskClient) -> None:
    found = re.search(r"<h1>(.*?)</h1>", client.get("/").text)
    assert found is not None
    assert found[1] == "Messages are missing or altered in 5 topics."


@pytest.mark.parametrize(
    ("topic", "state", "words"),
    [
        ("payments.captured", "missing", ["329 messages missing", "pay-gateway on pay-7", "headrace audit report"]),
        ("search.queries", "mismatch", ["other content", "headrace verify search.queries"]),
        ("orders.placed", "extra", ["2,126 messages extra"]),
        ("mail.clicks", "missing", ["headrace verify mail.clicks"]),
    ],
)
def test_each_fault_is_a_sentence_with_its_command(
    client: FlaskClient, topic: str, state: str, words: list[str]
) -> None:
    incidents = re.findall(r'<li id="[0-9a-f]{12}">(.*?)</li>', client.get("/").text, re.DOTALL)
    (incident,) = [one for one in incidents if f'href="/topics/{topic}?' in one]
    assert f'class="state {state}"' in incident
    for one in words:
        assert one in text_of(incident)


@pytest.mark.parametrize(("topic", "fault"), [(name, fault) for name, fault in FAULTS.items() if "<" not in name])
def test_fault_has_its_shape_and_place_in_the_rail(client: FlaskClient, topic: str, fault: object) -> None:
    row = re.search(rf'<th scope="row"><a href="/topics/{topic}\?.*?</tr>', client.get("/").text, re.DOTALL)
    assert row is not None
    names = {"lost": "missing", "altered": "mismatch", "doubled": "extra", "unloaded": "missing"}
    path = re.search(rf'<path class="{names[fault.kind]}" d="M(\d+) (\S+?)h(\d+)', row[0])  # type: ignore[attr-defined]
    assert path is not None
    first, length = int(path[1]), int(path[3])
    assert (first, length) == (144 - fault.first, fault.first - fault.end)  # type: ignore[attr-defined]
    assert path[2] == ("7" if names[fault.kind] == "missing" else "0")  # type: ignore[attr-defined]


def test_topic_without_finding_is_hidden_until_all_are_shown(client: FlaskClient) -> None:
    assert 'href="/topics/flights?' not in client.get("/").text
    assert "4 topics without a finding are not shown" in text_of(client.get("/").text)
    assert 'href="/topics/flights?' in client.get("/?show=all").text
    found = client.get("/?q=FLI").text
    assert 'href="/topics/flights?' in found
    assert "1 of 10 topics" in text_of(found)


def test_topic_page_shows_where_messages_are_missing(client: FlaskClient) -> None:
    page = client.get("/topics/payments.captured").text
    hops = re.findall(r'<li class="(hop[^"]*)">(.*?)</li>', page, re.DOTALL)
    assert [text_of(words).strip() for kind, words in hops if "wrong" in kind] == ["−329 0.24 %"]
    assert len(re.findall(r'<th scope="row"><time', page)) == 24
    altered = client.get("/topics/search.queries").text
    assert "as many, but others" in altered


def test_time_in_the_url_is_in_the_page_and_marked(client: FlaskClient) -> None:
    at = NOW_MS // WINDOW_MS * WINDOW_MS - 39 * WINDOW_MS
    page = client.get(f"/topics/search.queries?at={at}").text
    marked = re.search(r'<tr class="here">(.*?)</tr>', page, re.DOTALL)
    assert marked is not None
    assert "mismatch" in marked[1]


@pytest.mark.parametrize("range_name", ["24h", "7d", "30d"])
def test_topic_page_has_all_ranges(client: FlaskClient, range_name: str) -> None:
    page = client.get(f"/topics/orders.placed?range={range_name}")
    assert page.status_code == 200
    assert "2,126" in page.text


def test_windows_are_exported_with_all_rows(client: FlaskClient) -> None:
    found = json.loads(client.get("/topics/payments.captured?as=json").text)
    assert found["total"] == len(found["rows"]) == 24
    assert {row["verdict"] for row in found["rows"]} == {"missing"}
    assert -sum(row["difference"] for row in found["rows"]) == 329
    everything = json.loads(client.get("/topics/payments.captured?as=json&show=all").text)
    assert everything["total"] == 143  # the newest window has not been counted yet


def test_topics_are_listed_worst_first_and_searched(client: FlaskClient) -> None:
    rows = json.loads(client.get("/topics?as=json").text)["rows"]
    assert [row["topic"] for row in rows[:3]] == ["search.queries", "mail.views", "mail.clicks"]
    assert len(rows) == len(TOPICS)
    assert [row["topic"] for row in json.loads(client.get("/topics?as=json&q=extra").text)["rows"]] == ["orders.placed"]
    assert client.get("/topics?as=csv&q=%3Cscript").text.splitlines()[1].startswith("<script>")


def test_names_of_topics_are_never_markup_and_their_controls_are_visible(client: FlaskClient) -> None:
    for path in ("/?show=all", "/topics"):
        page = client.get(path).text
        assert "<script>alert" not in page
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
        assert "\u202e" not in page
    strange = quote("خبر\u202emoc.live", safe="")
    assert client.get(f"/topics/{strange}").status_code == 200


def test_every_topic_of_the_list_has_a_page(client: FlaskClient) -> None:
    links = re.findall(r'<th scope="row"><a href="([^"]+)">', client.get("/topics").text)
    assert len(links) == len(TOPICS)
    assert {client.get(link).status_code for link in links} == {200}
    assert {client.get(link.replace("%2F", "/")).status_code for link in links} == {200}


@pytest.mark.parametrize("name", ["/a", "a/", "a//b", "a\nb", "a b?#%", "a/partitions", "é\u202e", ".", "..", "../.."])
def test_any_name_of_a_topic_reaches_its_page(world: ConsoleWorld, name: str) -> None:
    with world.app.test_request_context():
        address = url_for("topic.page", topic=name)
    assert unquote(address.rpartition("/")[2]) not in (".", "..")  # browsers resolve these
    page = world.client().get(address)
    assert page.status_code == 404
    assert f"No messages of the topic {escape(visible(name))} have been counted." in page.text


def test_commands_quote_names_of_topics(client: FlaskClient) -> None:
    page = client.get("/").text
    assert "headrace audit report --topic &#39;&lt;script&gt;alert(1)&lt;/script&gt;&#39;" in page


def test_unchanged_page_is_not_sent_again(world: ConsoleWorld, counted: Path) -> None:
    client = world.client()
    for path in ("/", "/topics", "/topics/flights?range=7d"):
        first = client.get(path)
        tag = {"If-None-Match": first.headers["ETag"]}
        assert client.get(path, headers=tag).status_code == 304
        world.now_ms += 60_000  # ages in the page change
        assert client.get(path, headers=tag).status_code == 200
    first = client.get("/topics")
    with sqlite3.connect(counted / "audit.db") as database:
        database.execute("UPDATE store_state SET revision = revision + 1")
    assert client.get("/topics", headers={"If-None-Match": first.headers["ETag"]}).status_code == 200


def test_damaged_store_leaves_pages_that_state_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(settings: object, **_: object) -> PlatformStatus:
        raise OSError(5, "Input/output error", "/dev/sdx")

    (tmp_path / "audit.db").write_bytes(b"no database" * 1000)
    monkeypatch.setattr(now, "platform_status", fail)
    client = console_world(tmp_path).client()
    page = client.get("/")
    assert page.status_code == 200
    assert "It is not known whether messages are missing." in page.text
    assert "Input/output error: /dev/sdx" in page.text
    for path in ("/topics", "/topics/flights"):
        page = client.get(path)
        assert page.status_code == 200
        assert "Not known:" in page.text


def test_page_is_loaded_again_while_the_servers_are_being_checked(
    world: ConsoleWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading: Reading[PlatformStatus] = Reading(None, "no response within 2 s", NOW_MS, is_running=True)
    monkeypatch.setattr(now, "read_status", lambda: reading)
    page = world.client().get("/").text
    assert "data-load-again" in page
    assert '<noscript><meta http-equiv="refresh" content="3"></noscript>' in page
    assert headline([], 3, None, is_checking=True).sentence.endswith("The state of the servers is being checked.")
    monkeypatch.setattr(now, "read_status", lambda: Reading(None, "out of memory", NOW_MS))
    page = world.client().get("/").text
    assert "Out of memory." in page
    assert "refresh" not in page


def test_new_installation_has_a_page_without_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(now, "platform_status", lambda settings, **_: CALM)
    client = console_world(tmp_path).client()
    assert "No messages have been counted yet." in client.get("/").text
    assert client.get("/topics").status_code == 200
    assert client.get("/topics/flights").status_code == 404
    assert not (tmp_path / "audit.db").exists()


def test_replaced_database_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(now, "platform_status", lambda settings, **_: CALM)
    client = console_world(tmp_path).client()
    with AuditStore(tmp_path / "audit.db") as store:
        fill_store(store, NOW_MS, windows=10)
    assert "flights" in client.get("/topics").text
    for path in tmp_path.glob("audit.db*"):
        path.unlink()
    AuditStore(tmp_path / "audit.db").close()
    assert "No messages have been counted yet." in client.get("/topics").text


@pytest.mark.parametrize(
    ("findings", "words"),
    [
        ((), "Every message that was sent has arrived."),
        ((finding("part-down", "registry", "refuses connections"),), "1 failure needs action"),
        ((finding("disk-low", "disk", "3 GiB"), finding("not-applied", "t", "x")), "2 other findings need attention"),
        ((finding("audit-missing", "t", "reported as an incident"),), "Every message that was sent has arrived."),
    ],
)
def test_first_sentence_without_incidents_names_other_findings(findings: tuple[object, ...], words: str) -> None:
    status = PlatformStatus(NOW_MS, findings, ())  # type: ignore[arg-type]
    assert words in headline([], 3, status).sentence


@pytest.mark.parametrize("loader", ["warehouse", "state", "both"])
def test_commit_log_on_hdfs_starts_no_jvm_and_is_not_known(
    counted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loader: str
) -> None:
    started = []
    monkeypatch.setattr(storage, "_gateway", lambda settings: started.append("java") or 1 / 0)
    (tmp_path / "audit.db").write_bytes((counted / "audit.db").read_bytes())
    remote, local = "hdfs://127.0.0.1:1/w", str(tmp_path / "here")
    settings = Settings(
        loader={
            "warehouse": LoaderSettings(warehouse=remote),
            "state": LoaderSettings(warehouse=local, state=remote),
            "both": LoaderSettings(warehouse=remote, state="s3a://bucket/log"),
        }[loader],
        kafka=KafkaSettings(bootstrap_servers="127.0.0.1:1"),
        registry=RegistrySettings(url="http://127.0.0.1:1"),
    )
    client = console_world(tmp_path, settings=settings).client()
    for path in (
        "/topics/flights",
        "/quarantine",
        "/tables",
        "/tables/flights",
        "/find?topic=flights&partition=0&offset=1",
    ):
        assert client.get(path).status_code == 200, path
    page = client.get("/").text
    assert "Not known:</b> commit log, held back, quarantine, files." in page  # the brokers do not respond
    assert '<code class="command">headrace status</code> checks them.' in page
    assert "not-checked" not in client.get("/metrics").text
    assert started == []


def test_first_sentence_states_that_sources_are_skipped() -> None:
    status = PlatformStatus(NOW_MS, (), (), ("files",), "the commit log is remote")
    found = headline([], 3, status)
    assert found.level == "unsure"
    assert found.sentence == "Every message that was sent has arrived. The state of loads and files is not known here."


def test_random_urls_never_fail(client: FlaskClient) -> None:
    statuses = set()
    for url in random_urls(200, seed=36):
        response = client.get(url)
        assert response.status_code < 500 or is_refused_export(response), url
        assert "<script>alert" not in response.text or response.mimetype != "text/html"
        statuses.add(response.status_code)
    assert {200, 404} <= statuses


@pytest.mark.parametrize(
    ("kind", "subject", "href"),
    [
        ("file-missing", "flights/dt=2026-11-18/hr=10/1.avro", "/topics/flights"),
        ("audit-crashed", "flights", "/topics/flights"),
        ("alarm-quarantined", "flights", "/quarantine?topic=flights"),
        ("load-late", "loads", "/loads"),
    ],
)
def test_finding_leads_to_the_page_about_its_subject(
    counted: Path, monkeypatch: pytest.MonkeyPatch, kind: str, subject: str, href: str
) -> None:
    status = PlatformStatus(NOW_MS, (finding(kind, subject, "x"),), ())
    monkeypatch.setattr(now, "platform_status", lambda settings, **_: status)
    client = console_world(counted).client()
    assert f'<h3><a href="{href}">{subject}</a> ' in client.get("/").text
    assert 'href="/topics/flights"' not in client.get("/topics/flights").text.partition('class="events')[2]
