"""Unmodified kcat of Debian against a running broker."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from support.broker.protocol_client import ProtocolClient, fresh
from support.broker.stored_batches import (
    CODECS,
    codecs,
    is_idempotent,
    is_transactional,
    messages,
    stored_batches,
    values,
)

pytestmark = [
    pytest.mark.kcat,
    pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not on the PATH; install Debian's package kcat"),
]

RUN_TIMEOUT_S = 60
EARLIEST = ("-X", "auto.offset.reset=earliest")


def kcat(address: str, *arguments: str, sent: str = "") -> str:
    done = subprocess.run(
        ["kcat", "-b", address, *arguments], input=sent, capture_output=True, text=True, timeout=RUN_TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def topic(broker_address: str) -> str:
    with ProtocolClient(broker_address) as talk:
        return talk.topic(partitions=2)


def test_kcat_lists_broker_and_topics(broker_address: str, topic: str) -> None:
    result = kcat(broker_address, "-L", "-t", topic).splitlines()
    assert result == [
        f"Metadata for {topic} (from broker 1: {broker_address}/1):",
        " 1 brokers:",
        f"  broker 1 at {broker_address} (controller)",
        " 1 topics:",
        f'  topic "{topic}" with 2 partitions:',
        "    partition 0, leader 1, replicas: 1, isrs: 1",
        "    partition 1, leader 1, replicas: 1, isrs: 1",
    ]
    metadata = json.loads(kcat(broker_address, "-L", "-J"))
    assert metadata["brokers"] == [{"id": 1, "name": broker_address}]
    assert [len(each["partitions"]) for each in metadata["topics"] if each["topic"] == topic] == [2]


@pytest.mark.parametrize("codec", CODECS)
def test_keys_values_and_headers_round_trip(broker_address: str, topic: str, codec: str) -> None:
    lines = "".join(f"key {number}:value {number}\n" for number in range(500)) + ":no key\ndeleted:\n"
    headers = ("-H", "of=kcat", "-H", "empty=")
    settings = ("-X", "enable.idempotence=true", "-X", f"compression.codec={codec}")
    kcat(broker_address, "-P", "-t", topic, "-p", "1", "-K:", "-Z", *headers, *settings, sent=lines)
    batches = stored_batches(broker_address, topic, 1)
    assert codecs(batches) == {codec} and is_idempotent(batches)
    sent_headers = [("of", b"kcat"), ("empty", b"")]
    expected = [(b"key %d" % number, b"value %d" % number, sent_headers) for number in range(500)]
    expected += [(None, b"no key", sent_headers), (b"deleted", None, sent_headers)]
    assert [tuple(message[1:]) for message in messages(batches)] == expected
    result = kcat(broker_address, "-C", "-t", topic, "-p", "1", "-e", "-q", "-f", "%p %o %K %k %S %s %h\n").splitlines()
    assert result[0] == "1 0 5 key 0 7 value 0 of=kcat,empty="
    assert result[499:] == [
        "1 499 7 key 499 9 value 499 of=kcat,empty=",
        "1 500 -1  6 no key of=kcat,empty=",
        "1 501 7 deleted -1  of=kcat,empty=",
    ]


def test_offsets_are_found_by_time(broker_address: str, topic: str) -> None:
    for number in range(3):
        kcat(broker_address, "-P", "-t", topic, "-p", "0", sent=f"{number}\n")
    result = kcat(broker_address, "-C", "-t", topic, "-p", "0", "-e", "-q", "-f", "%o %T\n").split()
    assert result[::2] == ["0", "1", "2"]
    times_ms = [int(time) for time in result[1::2]]
    assert times_ms[0] < times_ms[1] < times_ms[2]

    def offset_of(timestamp: int) -> str:
        return kcat(broker_address, "-Q", "-t", f"{topic}:0:{timestamp}").strip()

    found = {timestamp: offset_of(timestamp) for timestamp in (-2, -1, times_ms[1], times_ms[1] + 1, times_ms[2] + 1)}
    assert list(found.values()) == [f"{topic} [0] offset {offset}" for offset in (0, 3, 1, 2, -1)]
    # Reads from a timestamp, and a number of messages from the end.
    assert kcat(broker_address, "-C", "-t", topic, "-p", "0", "-e", "-q", "-o", f"s@{times_ms[1]}") == "1\n2\n"
    assert kcat(broker_address, "-C", "-t", topic, "-p", "0", "-e", "-q", "-o", "-1") == "2\n"


def test_group_resumes_at_its_commit(broker_address: str, topic: str) -> None:
    group = fresh("g")
    for partition in range(2):
        kcat(broker_address, "-P", "-t", topic, "-p", str(partition), sent=f"{partition}-a\n{partition}-b\n")
    read = ("-G", group, "-e", "-q", "-f", "%p %o %s\n", *EARLIEST, topic)
    assert sorted(kcat(broker_address, *read).splitlines()) == ["0 0 0-a", "0 1 0-b", "1 0 1-a", "1 1 1-b"]
    assert kcat(broker_address, *read) == ""
    kcat(broker_address, "-P", "-t", topic, "-p", "1", sent="1-c\n")
    assert kcat(broker_address, *read) == "1 2 1-c\n"


def test_a_file_is_sent_in_a_transaction(broker_address: str, topic: str, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("".join(f"{number}\n" for number in range(50)))
    kcat(broker_address, "-P", "-t", topic, "-p", "0", "-X", f"transactional.id={fresh('id')}", "-l", str(lines))
    batches = stored_batches(broker_address, topic)
    assert is_transactional(batches)
    assert list(values(batches).values()) == [b"%d" % number for number in range(50)]
    read = ("-C", "-t", topic, "-p", "0", "-e", "-q", "-X", "isolation.level=read_committed")
    assert kcat(broker_address, *read) == lines.read_text()
