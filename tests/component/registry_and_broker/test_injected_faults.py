"""Injected faults are named by the audit report, the console, the metrics and the alerts: kind, topic, window, hop,
application and host.

All faults are injected once, each into a topic and a time of its own, on the bundled broker, a registry, loads and the
audit's database. In each topic a well-behaved producer counts in two windows before the fault and in its window.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from headrace import Producer
from headrace.audit.spool import SPOOL_DIRECTORY
from headrace.audit.window import WINDOW_MS, window_start, window_text
from headrace.cli import main
from headrace.registry.client import RegistryClient
from headrace.settings import Settings, load_settings
from support.checkout import ROOT
from support.console import console_world, event_texts
from support.free_ports import free_port
from support.loader.loads_in_process import Loads
from support.running_service import Service, StartService

pytestmark = pytest.mark.servers

TIMEOUT_S = 30
SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Payment",
        "fields": [{"name": "n", "type": "long"}, {"name": "timestamp", "type": "long"}],
    }
)
GOOD, FAULTY = ("shop", "web-1"), ("pay-gateway", "pay-7")
GOOD_MESSAGES, FAULTY_MESSAGES, GARBAGE_MESSAGES = 100, 2000, 17
WINDOWS_APART = 10
"""Windows between the faults of two topics, so that they are no common incident."""
Send = Callable[..., None]


@dataclass
class FaultyClient:
    """A Kafka client that treats single messages wrongly. `fault` gets the number of the message, a function that sends
    it, and its topic and value; it calls the function never, once or more often."""

    client: Any
    fault: Callable[[int, Send, str, bytes], None]
    count: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def produce(self, topic: str, value: bytes, key: bytes | None, partition: int, done: Any, *more: Any) -> None:
        def send(topic: str = topic, value: bytes = value, *, is_reported: bool = True) -> None:
            self.client.produce(topic, value, key, partition, done if is_reported else None, *more)

        self.count += 1
        self.fault(self.count, send, topic, value)


@dataclass
class Platform:
    """A registry, a broker that can be restarted on its port, and loads of single topics."""

    data_dir: Path
    config: Path
    settings: Settings
    start_broker: Callable[..., Service]
    broker: Service
    base_ms: int
    windows: dict[str, int] = field(default_factory=dict)
    loads: dict[str, Loads] = field(default_factory=dict)

    def window(self, topic: str) -> int:
        """Returns the start of the window of a topic's fault."""
        return self.windows.setdefault(topic, self.base_ms - len(self.windows) * WINDOWS_APART * WINDOW_MS)

    def produce(
        self,
        topic: str,
        start_ms: int,
        messages: int,
        producer: tuple[str, str] = GOOD,
        fault: Callable[[int, Send, str, bytes], None] | None = None,
    ) -> None:
        application, host = producer
        with (
            mock.patch("headrace.audit.producer_counter.socket.gethostname", return_value=host),
            Producer(self.settings, app=application) as sender,
        ):
            if fault is not None:
                sender._kafka = FaultyClient(sender._kafka, fault)
            for n in range(messages):
                sender.send(topic, {"n": n, "timestamp": start_ms + n}, key=str(n), schema=SCHEMA, partition=0)
            sender.flush(TIMEOUT_S)

    def load(self, topic: str) -> None:
        if topic not in self.loads:
            self.loads[topic] = Loads(self.data_dir, topic)
            self.loads[topic].use_registry(RegistryClient(self.settings.registry.url))
        self.loads[topic].load(self.settings.kafka.bootstrap_servers)

    def run(self, *arguments: str) -> Any:
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            main([*arguments, "--config", str(self.config), "--format", "json"])
        return json.loads(output.getvalue())


def with_client(fault: Callable[[int, Send, str, bytes], None]) -> Callable[[Platform, str], None]:
    """Returns an injection in which a producer uses a faulty client, in the window of the fault."""

    def inject(platform: Platform, topic: str) -> None:
        platform.produce(topic, platform.window(topic), FAULTY_MESSAGES, FAULTY, fault)
        platform.load(topic)

    return inject


def drop(number: int, send: Send, topic: str, value: bytes) -> None:
    """The broker acknowledges 1 of 1,000 messages, but in another topic."""
    send("elsewhere" if number % 1000 == 500 else topic)


def send_twice(number: int, send: Send, topic: str, value: bytes) -> None:
    send()
    if number % 100 == 50:
        send(is_reported=False)


def drop_and_send_twice(number: int, send: Send, topic: str, value: bytes) -> None:
    drop(number, send, topic, value)
    if number % 1000 == 600:
        send(is_reported=False)


def alter(number: int, send: Send, topic: str, value: bytes) -> None:
    """Changes a bit of one message on its way."""
    send(value=value[:5] + bytes([value[5] ^ 2]) + value[6:] if number == 700 else value)


def delete_loaded_file(platform: Platform, topic: str) -> None:
    platform.load(topic)
    (path, *_) = sorted((platform.data_dir / "warehouse" / topic).rglob("*.avro"))
    path.unlink()
    platform.produce(topic, platform.window(topic), GOOD_MESSAGES)
    platform.load(topic)


def truncate_partition(platform: Platform, topic: str) -> None:
    """Restores the partition's directory from a copy without the last, acknowledged messages; overrides the broker's
    refusal to start with it."""
    platform.load(topic)
    directory = platform.data_dir / "broker" / f"{topic}-0"
    platform.broker.stop()
    shutil.copytree(directory, directory.with_name("copy"))
    platform.broker = platform.start_broker()
    platform.produce(topic, platform.window(topic), FAULTY_MESSAGES, FAULTY)
    platform.broker.stop()
    shutil.rmtree(directory)
    directory.with_name("copy").rename(directory)
    platform.broker = platform.start_broker(HEADRACE__BROKER__ON_CORRUPTION="rename")
    platform.load(topic)


def load_no_more(platform: Platform, topic: str) -> None:
    """Nothing counts the log of the topic."""
    for number in range(7):
        platform.produce(topic, platform.window(topic) + number * WINDOW_MS, 10, FAULTY)


def send_with_wrong_clock(platform: Platform, topic: str) -> None:
    now_ms = time.time_ns() // 1_000_000
    platform.windows[topic] = window_start(now_ms + 3_600_000)
    platform.produce(topic, platform.windows[topic], FAULTY_MESSAGES, FAULTY)
    platform.load(topic)


def send_with_clock_behind(platform: Platform, topic: str) -> None:
    now_ms = time.time_ns() // 1_000_000
    platform.windows[topic] = window_start(now_ms - 3_600_000)
    platform.produce(topic, window_start(now_ms), GOOD_MESSAGES)
    platform.load(topic)
    platform.produce(topic, platform.windows[topic], FAULTY_MESSAGES, FAULTY)
    platform.load(topic)


KILLED = """
import json, os, signal, socket, sys
socket.gethostname = lambda: sys.argv[4]
from pathlib import Path
from headrace import Producer
from headrace.settings import load_settings
config, topic, application, _, start_ms, schema = sys.argv[1:]
producer = Producer(load_settings(config=Path(config)), app=application, linger_ms=60_000)
for number in range(130):
    producer.send(topic, {"n": number, "timestamp": int(start_ms)}, key="k", schema=schema, partition=0)
    if number == 99:
        producer._kafka.flush()
        producer._in_flight.process_completed()
os.kill(os.getpid(), signal.SIGKILL)
"""


def kill_with_unsent_messages(platform: Platform, topic: str) -> None:
    arguments = [str(platform.config), topic, *FAULTY, str(platform.window(topic)), SCHEMA]
    assert subprocess.run([sys.executable, "-c", KILLED, *arguments], cwd=ROOT).returncode == -signal.SIGKILL
    assert list((platform.data_dir / SPOOL_DIRECTORY).iterdir())
    platform.load(topic)


def send_without_serializer(platform: Platform, topic: str) -> None:
    """A producer that counts sends JSON."""
    with Producer(platform.settings, app=FAULTY[0]) as sender:
        start_ms = platform.window(topic)
        for n in range(GARBAGE_MESSAGES):
            value = json.dumps({"n": n}).encode()
            sender._counter.count_sent(topic, start_ms, None, value)
            done = sender._counter.on_delivery(start_ms)
            sender._kafka.produce(topic, value, None, 0, done, timestamp=start_ms)
        sender.flush(TIMEOUT_S)
    platform.load(topic)


@dataclass(frozen=True)
class Expected:
    """What is reported about a fault.

    Attributes:
        kind: kind of the finding of the status and the alert.
        verdict, hop: those of the window in the report; "" if all tiers agree.
        words: a regular expression for the sentence.
        metrics: names, values and labels without the topic.
        producer: the named application and host; None if no producer is the cause.
    """

    kind: str
    verdict: str
    hop: str
    words: str
    metrics: tuple[tuple[str, float, Mapping[str, str]], ...]
    producer: tuple[str, str] | None = FAULTY

    @property
    def producer_text(self) -> str:
        return "" if self.producer is None else "sent by pay-gateway on pay-7"


def state(name: str, windows: int = 1) -> tuple[str, float, Mapping[str, str]]:
    return "headrace_audit_windows", windows, {"state": name}


def difference(name: str, messages: int) -> tuple[str, float, Mapping[str, str]]:
    return f"headrace_audit_{name}_messages", messages, {"hop": "producer_to_log"}


@dataclass(frozen=True)
class Fault:
    inject: Callable[[Platform, str], None]
    expected: Expected


FAULTS = {
    "drops": Fault(
        with_client(drop),
        Expected(
            "audit-missing",
            "missing",
            "producer_to_log",
            "2 of 2,100 messages that brokers acknowledged are missing in the log",
            (state("missing"), difference("missing", 2)),
        ),
    ),
    "sends-twice": Fault(
        with_client(send_twice),
        Expected(
            "audit-extra",
            "extra",
            "producer_to_log",
            r"the log holds 2,120 messages and producers sent 2,100 \(a producer sent messages twice",
            (state("extra"), difference("extra", 20)),
        ),
    ),
    "drops-and-sends-twice": Fault(
        with_client(drop_and_send_twice),
        Expected(
            "audit-missing",
            "mismatch",
            "producer_to_log",
            "2,100 messages as acknowledged, but with other content: messages were altered on their way, or as many",
            (state("mismatch"),),
        ),
    ),
    "altered": Fault(
        with_client(alter),
        Expected(
            "audit-missing",
            "mismatch",
            "producer_to_log",
            "2,100 messages as acknowledged, but with other content",
            (state("mismatch"),),
        ),
    ),
    "file-deleted": Fault(
        delete_loaded_file,
        Expected(
            "file-missing",
            "",
            "",
            "topic file-deleted, dt=.*: is missing; it was added by commit",
            (),
            producer=None,
        ),
    ),
    "truncated": Fault(
        truncate_partition,
        Expected(
            "audit-missing",
            "missing",
            "producer_to_log",
            "2,000 of 2,100 messages that brokers acknowledged are missing in the log",
            (state("missing"), difference("missing", 2000)),
        ),
    ),
    "silent": Fault(
        load_no_more,
        Expected(
            "audit-silent",
            "unknown",
            "producer_to_log",
            "producers sent .* and the loader has not counted this topic",
            (state("unknown", 8),),
            producer=None,
        ),
    ),
    "clock": Fault(
        send_with_wrong_clock,
        Expected(
            "audit-ahead",
            "",
            "",
            r"2,000 messages with times up to 1 h( \d+ min)? in the future",
            (("headrace_audit_future_messages", 2000, {}),),
        ),
    ),
    "clock-behind": Fault(
        send_with_clock_behind,
        Expected(
            "audit-behind",
            "",
            "",
            r"2,000 messages with times up to 1 h before those of earlier messages in the log",
            (("headrace_audit_past_messages", 2000, {}),),
        ),
    ),
    "killed": Fault(
        kill_with_unsent_messages,
        Expected(
            "audit-crashed",
            "",
            "",
            "30 messages that a crashed producer sent without acknowledgement did not arrive in the log",
            (("headrace_audit_undelivered_messages", 30, {}),),
        ),
    ),
    "garbage": Fault(
        send_without_serializer,
        Expected(
            "alarm-quarantined",
            "",
            "",
            "17 messages, 17 of them since yesterday",
            (("headrace_load_quarantined_total", 17, {"reason": "framing"}),),
            producer=None,
        ),
    ),
}


@dataclass(frozen=True)
class Reported:
    """Everything that names the faults: report and alerts as JSON, events of pages as text, and samples of metrics."""

    platform: Platform
    report: Mapping[str, Any]
    alerts: Sequence[Mapping[str, Any]]
    first_page: Sequence[str]
    topic_pages: Mapping[str, Sequence[str]]
    metrics: Sequence[tuple[str, float, Mapping[str, str]]]


@pytest.fixture(scope="module")
def platform(
    tmp_path_factory: pytest.TempPathFactory, registry_url: str, start_module_service: StartService
) -> Platform:
    data_dir = tmp_path_factory.mktemp("faults")
    address = f"127.0.0.1:{free_port()}"
    config = data_dir / "headrace.toml"
    config.write_text(
        f"data_dir = '{data_dir}'\nregistry.url = '{registry_url}'\nkafka.bootstrap_servers = '{address}'\n"
        "audit.grace = '0s'\naudit.counted_topics = ['.*']\n[[alerts.rules]]\nkind = '*'\nhold = '0s'\n"
    )

    def start_broker(**environment: str) -> Service:
        command = ("headrace", "broker", "serve", "--data-dir", str(data_dir), "--broker-listen", address)
        return start_module_service(*command, environment=environment)

    settings = load_settings(config=config)
    now_ms = time.time_ns() // 1_000_000
    return Platform(data_dir, config, settings, start_broker, start_broker(), window_start(now_ms) - 20 * WINDOW_MS)


@pytest.fixture(scope="module")
def reported(platform: Platform) -> Reported:
    for topic, fault in FAULTS.items():
        admin = AdminClient({"bootstrap.servers": platform.settings.kafka.bootstrap_servers})
        admin.create_topics([NewTopic(topic, 1)])[topic].result(TIMEOUT_S)
        start_ms = platform.window(topic)
        platform.produce(topic, start_ms - WINDOW_MS, GOOD_MESSAGES)
        if topic != "clock":
            platform.produce(topic, start_ms, GOOD_MESSAGES)
        fault.inject(platform, topic)
    report = platform.run("audit", "report")
    alerts = platform.run("alerts", "check")["firing"]
    world = console_world(platform.data_dir, settings=platform.settings)
    world.now_ms = time.time_ns() // 1_000_000
    pages = {topic: world.client().get(f"/topics/{topic}?at={platform.windows[topic]}").text for topic in FAULTS}
    families = text_string_to_metric_families(world.client().get("/metrics").text)
    return Reported(
        platform,
        {one["topic"]: one for one in report["topics"]},
        alerts,
        event_texts(world.client().get("/").text),
        {topic: event_texts(text) for topic, text in pages.items()},
        [(one.name, one.value, one.labels) for family in families for one in family.samples],
    )


@pytest.fixture(params=FAULTS)
def topic(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def check_text(text: str, expected: Expected, window: str = "") -> None:
    assert re.search(expected.words, text, re.IGNORECASE), text
    assert window in text
    assert expected.producer_text in text


def test_report_names_the_fault(reported: Reported, topic: str) -> None:
    expected, found = FAULTS[topic].expected, reported.report[topic]
    bad = {one["window_start_ms"]: one for one in found["incomplete_windows"]}
    if expected.verdict:
        window = bad[reported.platform.windows[topic]]
        assert (window["verdict"], window["hop"]) == (expected.verdict, expected.hop)
        (event,) = found["events"]
        named = (
            [] if expected.producer is None else [{"application": expected.producer[0], "host": expected.producer[1]}]
        )
        assert event["producers"] == named
        check_text(event["sentence"], expected)
        assert found["producer_faults"] == []
    else:
        assert bad == {}
        for sentence in found["producer_faults"]:
            check_text(sentence, expected, window_text(reported.platform.windows[topic]))
        assert len(found["producer_faults"]) == (expected.producer is not None)


def test_alert_names_the_fault_and_nothing_else(reported: Reported, topic: str) -> None:
    expected = FAULTS[topic].expected
    (alert,) = [one for one in reported.alerts if one["subject"].split("/")[0] == topic]
    assert (alert["kind"], alert["state"]) == (expected.kind, "firing")
    window = window_text(reported.platform.windows[topic]) if expected.producer else ""
    check_text(alert["problem"], expected, window)
    assert topic in alert["show"]


def test_pages_name_the_fault(reported: Reported, topic: str) -> None:
    expected = FAULTS[topic].expected
    window = window_text(reported.platform.windows[topic]) if expected.producer else ""
    (on_first,) = [one for one in reported.first_page if re.match(rf"\w+ {topic}[ /]", one)]
    (on_its_own,) = reported.topic_pages[topic]
    check_text(on_first, expected, window)
    check_text(on_its_own, expected, window)


def test_metrics_count_the_fault(reported: Reported, topic: str) -> None:
    expected = FAULTS[topic].expected
    for name, value, labels in expected.metrics:
        assert (name, value, {**labels, "topic": topic}) in reported.metrics
    kinds = [one.expected.kind for one in FAULTS.values()]
    found = [(value, labels["kind"]) for name, value, labels in reported.metrics if name == "headrace_status_findings"]
    assert (kinds.count(expected.kind), expected.kind) in found
