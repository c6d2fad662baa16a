"""The page of messages: permissions, limits, texts and headers; the sample itself is replaced."""

from __future__ import annotations

import csv
import io
import json
import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from flask.testing import FlaskClient

from headrace.console.broker_reader import BrokerReader, BrokersBusy
from headrace.console.pages import messages
from headrace.kafka_wire.errors import KafkaUnavailable
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.pipeline.message_sample import MessageSample, SampledMessage, SampleEnd, SampleLimits, SampleStart
from headrace.settings import KafkaSettings, RegistrySettings, Settings
from support.console import NOW_MS, ConsoleWorld, console_world, user_line
from support.console_brokers import LONG, SAMPLE

USERS = (
    user_line("lea")
    + user_line("kim")
    + user_line("root")
    + "grant lea read *\ngrant lea payload orders*\ngrant kim read *\ngrant root admin *\ngrant anonymous read *\n"
)


class Sampled:
    """Replaces the reads of brokers and registry by a sample, and records its arguments."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[TopicPartition, SampleStart, SampleLimits]] = []
        self.sample = SAMPLE
        monkeypatch.setattr(BrokerReader, "use", lambda reader, read: read(None))
        monkeypatch.setattr(messages, "read_sample", self.read)
        monkeypatch.setattr(messages, "decode_sample", lambda sample, *_: sample)

    def read(self, cluster: object, where: TopicPartition, start: SampleStart, limits: SampleLimits) -> MessageSample:
        self.calls.append((where, start, limits))
        return self.sample


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> Sampled:
    return Sampled(monkeypatch)


@pytest.fixture
def client(tmp_path: Path) -> FlaskClient:
    return console_world(tmp_path).client()


PATHS = (
    "/messages?topic=orders",
    "/messages?topic=orders&as=csv",
    "/messages?topic=orders&as=json",
    "/messages/part?topic=orders&offset=40",
    "/messages/part?topic=orders&offset=40&part=key",
)


@pytest.mark.parametrize(("user", "status"), [("lea", 200), ("kim", 403), ("root", 403), ("", 302)])
def test_messages_need_payload_on_the_topic(tmp_path: Path, sampled: Sampled, user: str, status: int) -> None:
    world = console_world(tmp_path, USERS)
    client = world.signed_in(user) if user else world.client()
    for path in PATHS:
        response = client.get(path)
        assert response.status_code == status, path
        assert (response.headers["Cache-Control"] == "no-store") == (status == 200)
        assert status == 200 or "9007199254740993" not in response.text
    assert bool(sampled.calls) == (status == 200)
    if user:
        assert client.get("/messages?topic=payments").status_code == 403
        assert client.get("/messages/part?topic=payments&offset=40").status_code == 403
    else:
        assert "/sign-in?next=" in client.get(PATHS[0]).headers["Location"]


def test_console_of_a_network_without_users_never_shows_messages(tmp_path: Path, sampled: Sampled) -> None:
    from headrace.settings import Address

    own = {"listen": Address("0.0.0.0", 1), "allow_unauthenticated_from": "network", "public_url": "http://127.0.0.1"}
    world = console_world(tmp_path, **own)
    assert world.client().get("/messages?topic=orders", base_url="http://127.0.0.1").status_code == 403
    assert sampled.calls == []


def test_page_shows_values_reasons_and_first_bytes_as_text(client: FlaskClient, sampled: Sampled) -> None:
    page = client.get("/messages?topic=orders").text
    assert "9007199254740993" in page
    assert "no value (tombstone)" in page
    assert "0x0000000009" in page
    assert "905 bytes" in page
    assert "trace=0xff" in page
    assert "<script>alert" not in page
    assert "\u202e" not in page
    assert "alert(1)&lt;/script&gt;\\u202e" in page
    assert "x" * 1_900 in page
    assert "x" * 2_100 not in page  # the rest is a download
    assert 'href="/messages/part?topic=orders&amp;partition=0&amp;offset=43"' in page
    assert 'href="/find?topic=orders&amp;partition=0&amp;offset=43"' in page
    summary = "Offsets 40 to 43 of 5 to 98 in the log. Reading ended at the limit of messages. 1 message not decoded."
    assert summary in " ".join(page.split())


def test_exports_have_whole_values(client: FlaskClient, sampled: Sampled) -> None:
    found = json.loads(client.get("/messages?topic=orders&as=json").text)["rows"]
    assert [row["value"] for row in found if row["offset"] in (40, 43)] == ['{"id": 9007199254740993}', LONG]
    assert (found[1]["time"], found[1]["value"], found[1]["problem"]) == (None, "", "no value (tombstone)")
    rows = list(csv.reader(io.StringIO(client.get("/messages?topic=orders&as=csv").text, newline="")))
    assert rows[4][3] == "'=cmd"
    assert rows[3][3] == "<script>alert(1)</script>\\u202e"


def test_download_has_the_bytes_of_one_message(client: FlaskClient, sampled: Sampled) -> None:
    response = client.get("/messages/part?topic=orders&partition=2&offset=40")
    assert (response.data, response.content_type) == (b"\0value", "application/octet-stream")
    assert response.headers["Content-Disposition"] == 'attachment; filename="headrace-message-2-40.value"'
    assert sampled.calls == [(TopicPartition("orders", 2), SampleStart(offset=40), SampleLimits(1))]
    assert client.get("/messages/part?topic=orders&offset=40&part=key").data == b"k1"
    for query in ("offset=41", "offset=39", "offset=41&part=key", ""):
        assert client.get(f"/messages/part?topic=orders&{query}").status_code == 404


@pytest.mark.parametrize(
    ("query", "partition", "start", "count"),
    [
        ("", 0, SampleStart(), 50),
        ("&partition=3&offset=17&count=200", 3, SampleStart(offset=17), 200),
        ("&count=100000", 0, SampleStart(), 500),
        ("&count=0", 0, SampleStart(), 1),
        ("&at=2026-11-18 10:30", 0, SampleStart(time_ms=NOW_MS - 2_400_000), 50),
        ("&at=2026-11-18T11:30%2B01:00", 0, SampleStart(time_ms=NOW_MS - 2_400_000), 50),
        (f"&at={NOW_MS}", 0, SampleStart(time_ms=NOW_MS), 50),
        ("&offset=&at=&partition=", 0, SampleStart(), 50),
    ],
)
def test_parameters_choose_the_sample_within_limits(
    client: FlaskClient, sampled: Sampled, query: str, partition: int, start: SampleStart, count: int
) -> None:
    assert client.get(f"/messages?topic=orders{query}").status_code == 200
    assert sampled.calls == [(TopicPartition("orders", partition), start, SampleLimits(count))]


@pytest.mark.parametrize("query", ["offset=-1", "offset=x", "at=yesterday", "partition=a", "count=-5", "at=99999-1-1"])
def test_bad_parameters_are_refused(client: FlaskClient, sampled: Sampled, query: str) -> None:
    assert client.get(f"/messages?topic=orders&{quote(query, safe='=')}").status_code == 400
    assert client.get("/messages").status_code == 404
    assert sampled.calls == []


def test_links_lead_to_the_messages_before_and_after(client: FlaskClient, sampled: Sampled) -> None:
    page = client.get("/messages?topic=orders&count=20").text
    assert 'rel="prev" href="/messages?topic=orders&amp;partition=0&amp;count=20&amp;offset=20"' in page
    assert 'rel="next" href="/messages?topic=orders&amp;partition=0&amp;count=20&amp;offset=44"' in page
    assert "offset=40&amp;as=csv" in page or "as=csv" in page
    sampled.sample = MessageSample(5, 5, 5, 5, SampleEnd.LOG_END)
    page = client.get("/messages?topic=orders").text
    assert 'rel="prev"' not in page
    assert 'rel="next"' not in page
    assert "There are no messages in these offsets." in page


def test_brokers_that_are_down_leave_a_page_and_no_export(
    client: FlaskClient, sampled: Sampled, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Any:
        raise KafkaUnavailable("broker b:9092 refuses connections")

    monkeypatch.setattr(messages, "read_sample", fail)
    page = client.get("/messages?topic=orders")
    assert page.status_code == 200
    assert "Broker b:9092 refuses connections." in page.text
    for path in PATHS[1:]:
        assert client.get(path).status_code == 503


def test_registry_that_is_down_leaves_undecoded_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    undecoded = MessageSample(0, 1, 0, 1, SampleEnd.LOG_END, (SampledMessage(0, 1, b"k", b"\0\0\0\0\1\2", ()),))
    monkeypatch.setattr(BrokerReader, "use", lambda reader, read: undecoded)
    settings = Settings(
        registry=RegistrySettings(url="http://127.0.0.1:1"), kafka=KafkaSettings(bootstrap_servers="127.0.0.1:1")
    )
    page = console_world(tmp_path, settings=settings).client().get("/messages?topic=orders").text
    assert "0x000000000102" in page
    assert "1 message not decoded." in " ".join(page.split())
    assert "127.0.0.1:1" in page


def test_user_has_two_reads_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started, ends = threading.Semaphore(0), threading.Event()

    def read(*_: object) -> MessageSample:
        started.release()
        assert ends.wait(60)
        return SAMPLE

    world: ConsoleWorld = console_world(tmp_path, USERS)
    sampled = Sampled(monkeypatch)
    monkeypatch.setattr(messages, "read_sample", read)
    monkeypatch.setattr(messages, "WAIT_S", 60.0)
    client = world.signed_in("lea")
    threads = [
        threading.Thread(target=world.signed_in("lea").get, args=(f"/messages?topic=orders&offset={number}",))
        for number in range(2)
    ]
    for one in threads:
        one.start()
        assert started.acquire(timeout=60)
    page = client.get("/messages?topic=orders&offset=9").text
    assert "2 earlier reads of this user have not ended" in page
    ends.set()
    for one in threads:
        one.join()
    monkeypatch.setattr(messages, "read_sample", sampled.read)
    assert "9007199254740993" in client.get("/messages?topic=orders").text


def test_reads_of_a_user_end_with_an_error_too() -> None:
    reader = BrokerReader(Settings())
    for _ in range(5):
        with pytest.raises(KafkaUnavailable), reader.read_of("lea"):
            raise KafkaUnavailable("gone")
    first, second, third = (reader.read_of("lea") for _ in range(3))
    with first, second, reader.read_of("kim"), pytest.raises(BrokersBusy), third:
        raise AssertionError
