"""Transactions over HTTP."""

from __future__ import annotations

import gzip
import json
import sys
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.gateway.sessions.service import TOPIC_S
from headrace.registry.client import RegistryClient
from support.free_ports import free_port
from support.gateway import GatewayClient, GatewayResponse, stored
from support.running_service import Service
from support.session_client import lines_of_values, read_to_end

pytestmark = pytest.mark.servers

READY_S = 60.0
FILE_BYTES_MAX = 25_000_000
FRAMED = "application/vnd.headrace.records"


@pytest.fixture
def topic(topic: str, broker_address: str) -> str:
    return create(broker_address, f"transactions-{topic}")


def create(address: str, topic: str, partitions: int = 3, **config: str) -> str:
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(30)
    return topic


def store(
    gateway: GatewayClient, topic: str, body: bytes, query: str = "", content_type: str = "text/plain", **headers: str
) -> GatewayResponse:
    """Stores a chunk; waits until the gateway serves the lane."""
    deadline = time.monotonic() + READY_S
    while True:
        found = gateway.post(f"/v1/store?topic={topic}{query}", body, content_type, **headers)
        if found.status != 503 or time.monotonic() > deadline:
            return found
        assert found.headers["retry-after"] == "1"
        time.sleep(0.1)


def request_commit(gateway: GatewayClient, transaction_id: str, body: bytes, **fields: Any) -> GatewayResponse:
    wanted = {"transaction_id": transaction_id, "length": len(body), "checksum": f"crc32={zlib.crc32(body):08x}"}
    return gateway.post("/v1/commit_request", wanted | fields)


def commit(gateway: GatewayClient, transaction_id: str) -> GatewayResponse:
    return gateway.post("/v1/commit", {"transaction_id": transaction_id})


def test_lines_are_written_at_commit_with_their_schema_and_headers(
    gateway: GatewayClient, topic: str, broker_address: str, registry_url: str
) -> None:
    body = b"first\r\n\n\xffx\n"
    found = store(gateway, topic, body, "&host=web1&file=/var/log/a&log_type=nginx&partition=2").json
    transaction_id, checksum = found["transaction_id"], f"crc32={zlib.crc32(body):08x}"
    assert (found["length"], found["checksum"], found["records"]) == (len(body), checksum, None)
    assert request_commit(gateway, transaction_id, body).json["records"] == 3
    committed = commit(gateway, transaction_id).json
    expected = {"topic": topic, "records": 3, "length": len(body), "checksum": checksum}
    assert committed == expected | {
        "transaction_id": transaction_id,
        "offsets": [{"partition": 2, "start": 0, "end": 3}],
    }
    messages = stored(broker_address, topic, 3)
    with RegistryClient(registry_url) as registry:
        schema = registry.version(f"{topic}-value", "latest")
    assert json.loads(schema.text)["name"] == "LogLine"
    assert [message.value()[1:5] for message in messages] == [schema.schema_id.to_bytes(4, "big")] * 3
    assert lines_of_values([(0, message.value()) for message in messages]) == [b"first\r", b"", "\ufffdx".encode()]
    headers = {"host": b"web1", "file": b"/var/log/a", "log_type": b"nginx", "hr.t": transaction_id.encode()}
    assert [dict(message.headers()) for message in messages] == [headers] * 3
    assert {message.partition() for message in messages} == {2}


def test_each_request_can_be_repeated(gateway: GatewayClient, topic: str, broker_address: str) -> None:
    body = b"a\nb\n"
    transaction_id = store(gateway, topic, body).json["transaction_id"]
    again = store(gateway, topic, body, f"&transaction_id={transaction_id}")
    assert again.json["transaction_id"] == transaction_id
    requested = request_commit(gateway, transaction_id, body).json
    assert request_commit(gateway, transaction_id, body).json == requested
    committed = commit(gateway, transaction_id)
    assert committed.status == 200
    assert commit(gateway, transaction_id).json == committed.json
    assert store(gateway, topic, body, f"&transaction_id={transaction_id}").status == 200
    assert request_commit(gateway, transaction_id, body).status == 200
    assert commit(gateway, transaction_id).json == committed.json
    assert len(stored(broker_address, topic, 2)) == 2
    next_id = store(gateway, topic, b"c\n", f"&partition={committed.json['offsets'][0]['partition']}").json
    request_commit(gateway, next_id["transaction_id"], b"c\n")
    assert commit(gateway, next_id["transaction_id"]).json["offsets"][0]["start"] == 3, "two records and a marker"


def test_requests_of_one_transaction_at_once_write_it_once(
    gateway: GatewayClient, topic: str, broker_address: str
) -> None:
    body = b"a\nb\n"
    transaction_id = store(gateway, topic, body).json["transaction_id"]

    def run(_: int) -> Any:
        while True:
            store(gateway, topic, body, f"&transaction_id={transaction_id}")
            request_commit(gateway, transaction_id, body)
            found = commit(gateway, transaction_id)
            if found.status == 200:
                return found.json
            # Another thread has replaced the chunk.
            assert found.problem in ((404, 40471), (409, 40972))

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(run, range(16)))
    assert found == [found[0]] * 16
    values = lines_of_values([(0, message.value()) for message in read_to_end(broker_address, topic)])
    assert sorted(values) == [b"a", b"b"]


def test_commit_without_its_earlier_steps_is_refused(gateway: GatewayClient, topic: str) -> None:
    body = b"a\n"
    transaction_id = store(gateway, topic, body).json["transaction_id"]
    assert commit(gateway, transaction_id).problem == (409, 40972)
    assert request_commit(gateway, transaction_id, body, checksum="crc32=00000000").problem == (409, 40971)
    assert request_commit(gateway, transaction_id, body, length=3).problem == (409, 40971)
    unknown = f"{time.time_ns() // 1_000_000:012x}-{'0' * 16}"
    assert request_commit(gateway, unknown, body).problem == (404, 40471)
    assert commit(gateway, unknown).problem == (404, 40471)
    expired = f"{time.time_ns() // 1_000_000 - 7_200_000:012x}-{'0' * 16}"
    assert commit(gateway, expired).problem == (410, 41070)
    old = f"{time.time_ns() // 1_000_000 - 7 * 24 * 3_600_000:012x}-{'0' * 16}"
    assert commit(gateway, old).problem == (410, 41071)
    assert store(gateway, topic, body, f"&transaction_id={old}").problem == (410, 41071)
    assert commit(gateway, "nonsense").problem == (400, 400)
    assert commit(gateway, f"{2**47:012x}-{'0' * 16}").problem == (400, 400), "an id of the future"


def test_other_content_under_the_id_of_a_committed_transaction_is_refused(
    gateway: GatewayClient, topic: str, broker_address: str
) -> None:
    transaction_id = store(gateway, topic, b"a\n").json["transaction_id"]
    request_commit(gateway, transaction_id, b"a\n")
    assert commit(gateway, transaction_id).status == 200
    store(gateway, topic, b"b\n", f"&transaction_id={transaction_id}")
    request_commit(gateway, transaction_id, b"b\n")
    assert commit(gateway, transaction_id).problem == (409, 40971)
    assert lines_of_values([(0, message.value()) for message in stored(broker_address, topic, 1)]) == [b"a"]


def test_json_that_does_not_fit_the_schema_is_refused_as_a_whole(
    gateway: GatewayClient, topic: str, broker_address: str, registry_url: str
) -> None:
    schema = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    with RegistryClient(registry_url) as registry:
        registry.register(f"{topic}-value", json.dumps(schema))
    body = b'{"id": 1}\n{"id": "x"}\nno json\n'
    transaction_id = store(gateway, topic, body, "&format=json").json["transaction_id"]
    refused = request_commit(gateway, transaction_id, body)
    assert refused.problem == (422, 42270) and refused.json["rejected_count"] == 2
    assert [one["record"] for one in refused.json["rejected"]] == [2, 3]
    assert "id" in refused.json["rejected"][0]["message"]
    assert commit(gateway, transaction_id).problem == (409, 40972)
    body = b'{"id": 1}\n{"id": 2}\n'
    store(gateway, topic, body, f"&format=json&transaction_id={transaction_id}")
    assert request_commit(gateway, transaction_id, body).status == 200
    assert commit(gateway, transaction_id).json["records"] == 2
    assert [message.value()[5:] for message in stored(broker_address, topic, 2)] == [b"\x02", b"\x04"]


def test_binary_records_and_a_compressed_body(gateway: GatewayClient, topic: str, broker_address: str) -> None:
    body = b"1 4\na\n\x00b\n2 0\n\n3 3 1/2\nxyz\n"
    checksum = f"crc32={zlib.crc32(body):08x}"
    found = store(
        gateway,
        topic,
        gzip.compress(body),
        "&format=binary",
        FRAMED,
        content_encoding="gzip",
        headrace_checksum=checksum,
    ).json
    request_commit(gateway, found["transaction_id"], body)
    assert commit(gateway, found["transaction_id"]).json["records"] == 3
    messages = stored(broker_address, topic, 3)
    assert [message.value() for message in messages] == [b"a\n\x00b", b"", b"xyz"]
    assert [dict(message.headers()).get("hr.part") for message in messages] == [None, None, b"1/2"]


def test_chunk_of_many_batches_is_in_one_transaction(gateway: GatewayClient, topic: str, broker_address: str) -> None:
    body = b"".join(b"%06d " % number + b"x" * 200 + b"\n" for number in range(20_000))
    found = store(gateway, topic, body, "&format=binary").json
    assert request_commit(gateway, found["transaction_id"], body).status == 200
    committed = commit(gateway, found["transaction_id"]).json
    assert [(one["start"], one["end"]) for one in committed["offsets"]] == [(0, 20_000)]
    assert b"".join(message.value() + b"\n" for message in stored(broker_address, topic, 20_000)) == body


def test_refused_records_abort_the_transaction(gateway: GatewayClient, topic: str, broker_address: str) -> None:
    compacted = create(broker_address, f"{topic}-compacted", 1, **{"cleanup.policy": "compact"})
    transaction_id = store(gateway, compacted, b"a\n").json["transaction_id"]
    request_commit(gateway, transaction_id, b"a\n")
    assert commit(gateway, transaction_id).problem == (500, 50002)
    assert commit(gateway, transaction_id).problem == (500, 50002), "the chunk is still stored"
    other = store(gateway, topic, b"b\n").json["transaction_id"]
    request_commit(gateway, other, b"b\n")
    assert commit(gateway, other).status == 200


def test_commit_to_a_deleted_topic_is_refused_and_the_lane_goes_on(
    gateway: GatewayClient, topic: str, broker_address: str
) -> None:
    deleted = create(broker_address, f"{topic}-deleted")
    transaction_id = store(gateway, deleted, b"a\n").json["transaction_id"]
    assert request_commit(gateway, transaction_id, b"a\n").status == 200
    admin = AdminClient({"bootstrap.servers": broker_address})
    admin.delete_topics([deleted])[deleted].result(30)
    time.sleep(TOPIC_S)  # the gateway caches the topic
    assert commit(gateway, transaction_id).problem == (404, 40401)
    assert request_commit(gateway, transaction_id, b"a\n").status == 200, "it is converted"
    create(broker_address, deleted)
    while (found := commit(gateway, transaction_id)).status == 404:
        time.sleep(0.2)
    assert found.json["records"] == 1


@pytest.mark.parametrize(
    ("query", "body", "content_type", "code"),
    [
        ("topic=unknown-topic", b"a\n", "text/plain", 40401),
        ("topic=../x", b"a\n", "text/plain", 40401),
        ("", b"a\n", "text/plain", 400),
        ("topic={topic}&partition=3", b"a\n", "text/plain", 40402),
        ("topic={topic}&partition=-1", b"a\n", "text/plain", 400),
        ("topic={topic}&source_id=a", b"a\n", "text/plain", 400),
        ("topic={topic}&extra=1", b"a\n", "text/plain", 400),
        ("topic={topic}&format=xml", b"a\n", "text/plain", 400),
        ("topic={topic}&transaction_id=1", b"a\n", "text/plain", 400),
        ("topic={topic}", b"{}", "application/json", 415),
        ("topic={topic}", b"a\n" * (33 * 2**20), "text/plain", 41301),
    ],
)
def test_chunk_is_refused(
    gateway: GatewayClient, topic: str, query: str, body: bytes, content_type: str, code: int
) -> None:
    store(gateway, topic, b"the lanes are served\n")
    found = gateway.post(f"/v1/store?{query.format(topic=topic)}", body, content_type)
    assert found.json["error_code"] == code


def test_malformed_bodies_are_refused(gateway: GatewayClient, topic: str) -> None:
    bomb = gzip.compress(b"\n" * (65 * 2**20))
    assert store(gateway, topic, bomb, content_encoding="gzip").problem == (413, 41301)
    assert store(gateway, topic, gzip.compress(b"a\n")[:-4], content_encoding="gzip").problem == (400, 400)
    assert store(gateway, topic, b"a\n", headrace_checksum="crc32=0").problem == (400, 400)
    for body, content_type in [(b"no end", "text/plain"), (b"", "text/plain"), (b"5 9\na\n", FRAMED)]:
        transaction_id = store(gateway, topic, body, content_type=content_type).json["transaction_id"]
        assert request_commit(gateway, transaction_id, body).problem == (400, 400)
    for wrong in [[], {}, {"transaction_id": 1}, {"transaction_id": "x", "extra": 1}]:
        assert gateway.post("/v1/commit", wrong).problem == (400, 400)


def test_limits_expiry_and_a_failing_disk(tmp_path: Path, registry_url: str, broker_address: str, topic: str) -> None:
    service = Service(
        ["headrace", "gateway", "serve", "--data-dir", str(tmp_path), "--gateway-listen", "127.0.0.1:0"],
        {
            **_environment(registry_url, broker_address, f"{topic}-ledger"),
            "HEADRACE__GATEWAY__SPOOL_CLIENT_BYTES_MAX": "35000000",
            "HEADRACE__GATEWAY__TRANSACTION_EXPIRY": "3s",
        },
        # The spool of the audit has 21 MB.
        program=("prlimit", f"--fsize={FILE_BYTES_MAX}", sys.executable, "-P", "-m"),
    )
    try:
        gateway = GatewayClient(service.addresses["gateway"])
        body = b"x" * 999 + b"\n"
        first = gateway.post(f"/v1/store?topic={topic}", body, "text/plain")
        assert first.status == 200, "the first request waits until the ledger exists"
        found = first.json
        expires = datetime.fromisoformat(found["expires"]).timestamp()
        large = store(gateway, topic, body * 30_000)
        assert large.problem == (507, 50770) and large.headers["retry-after"] == "10"
        chunks = [store(gateway, topic, body * 20_000) for _ in range(2)]
        assert [one.status for one in chunks] == [200, 429]
        assert chunks[1].headers["retry-after"] == "10"
        while time.time() < expires + 1:
            time.sleep(0.1)
        assert request_commit(gateway, found["transaction_id"], body).problem == (410, 41070)
        deadline = time.monotonic() + READY_S
        while (again := store(gateway, topic, body * 20_000)).status == 429:
            assert time.monotonic() < deadline
            time.sleep(0.5)
        assert again.status == 200
        data = list((tmp_path / "gateway-spool").rglob("*.raw"))
        assert [path.stat().st_size for path in data] == [len(body) * 20_000], "failed and expired chunks are deleted"
    finally:
        assert service.stop() == 0


@pytest.fixture
def two_gateways(tmp_path: Path, registry_url: str, broker_address: str, topic: str) -> Iterator[dict[str, Service]]:
    """Gateways by URL, with a ledger of their own."""
    environment = _environment(registry_url, broker_address, f"{topic}-ledger")
    running = {}
    for number in range(2):
        url = f"http://127.0.0.1:{free_port()}"
        running[url] = _start(tmp_path / str(number), url, environment)
    yield running
    for service in running.values():
        service.stop()


def _start(directory: Path, url: str, environment: dict[str, str]) -> Service:
    command = ["headrace", "gateway", "serve", "--data-dir", str(directory)]
    return Service([*command, "--gateway-listen", url.removeprefix("http://")], environment)


def _environment(registry_url: str, broker_address: str, ledger: str) -> dict[str, str]:
    return {
        "HEADRACE__REGISTRY__URL": registry_url,
        "HEADRACE__KAFKA__BOOTSTRAP_SERVERS": broker_address,
        "HEADRACE__GATEWAY__LEDGER_TOPIC": ledger,
        "HEADRACE__GATEWAY__LANES": "8",
    }


def _lanes(gateway: GatewayClient) -> int:
    page = gateway.request("GET", "/metrics").content.decode()
    return next(
        int(float(line.split()[1])) for line in page.splitlines() if line.startswith("headrace_gateway_ledger_lanes ")
    )


def test_other_gateway_redirects_takes_over_and_never_commits_a_chunk_twice(
    two_gateways: dict[str, Service], tmp_path: Path, topic: str, broker_address: str, registry_url: str
) -> None:
    first, second = map(GatewayClient, two_gateways)
    first_url, second_url = two_gateways
    deadline = time.monotonic() + READY_S
    for gateway in (first, second):
        store(gateway, topic, b"the gateway shares the lanes\n")
    while [_lanes(gateway) for gateway in (first, second)] != [4, 4]:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    urls = [store(gateway, topic, b"x\n").json["url"] for gateway in (first, second)]
    assert urls == [first_url, second_url], "each gateway creates ids of its own lanes"
    waiting = [store(first, topic, b"%d\n" % number).json["transaction_id"] for number in range(2)]
    for number, transaction_id in enumerate(waiting):
        assert request_commit(first, transaction_id, b"%d\n" % number).status == 200
        while (moved := commit(second, transaction_id)).status == 503:
            time.sleep(0.2)  # it reads the owners of lanes each second
        assert (moved.problem, moved.headers["location"]) == ((307, 307), f"{first_url}/v1/commit")
    moved = second.post(f"/v1/store?topic={topic}&transaction_id={waiting[0]}", b"0\n", "text/plain")
    assert (moved.status, moved.headers["location"]) == (
        307,
        f"{first_url}/v1/store?topic={topic}&transaction_id={waiting[0]}",
    )

    two_gateways[first_url].kill()
    while (found := commit(second, waiting[0])).status in (307, 503):
        time.sleep(0.2)
    assert found.problem == (404, 40471)
    assert store(second, topic, b"0\n", f"&transaction_id={waiting[0]}").status == 200
    assert request_commit(second, waiting[0], b"0\n").status == 200
    committed = commit(second, waiting[0]).json

    two_gateways[first_url] = _start(
        tmp_path / "0", first_url, _environment(registry_url, broker_address, f"{topic}-ledger")
    )
    two_gateways[second_url].kill()
    for transaction_id in waiting:
        while (found := commit(first, transaction_id)).status in (307, 503):
            time.sleep(0.2)
        assert found.status == 200, "the chunk of a killed gateway is found again"
        if transaction_id == waiting[0]:
            assert found.json == committed, "the ledger decides, although both gateways had the chunk"
    values = lines_of_values([(0, message.value()) for message in read_to_end(broker_address, topic)])
    assert sorted(values) == [b"0", b"1"]
