"""`headrace push` with real gateways: rotated files arrive as records, exactly once and in order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.cli import main
from support.push_client import ClientProcess, config_table, eventually
from support.running_service import Service
from support.session_client import lines_of_values, request, stored_values

pytestmark = pytest.mark.servers

REAL = {"retry": "50ms", "retry_max": "500ms", "scan": "50ms", "poll": "20ms"}


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs"


def create(address: str, topic: str) -> str:
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(30)
    return topic


def append(path: Path, lines: list[bytes]) -> None:
    with path.open("ab") as file:
        file.write(b"".join(line + b"\n" for line in lines))


def confirmed_bytes(directory: Path) -> int:
    """Sum of the positions in the client's state."""
    try:
        found = json.loads((directory / "state" / "state.json").read_text())
    except FileNotFoundError:
        return 0
    return sum(source["position"] for source in found["sources"])


def first_line(records: list[tuple[int, bytes]]) -> int:
    return int(lines_of_values(records)[0].split()[1])


def test_rotated_log_is_stored_once_by_a_real_gateway(
    gateway_service: Service, topic: str, broker_address: str, logs: Path, tmp_path: Path
) -> None:
    create(broker_address, topic)
    table = config_table(gateway_service.addresses["gateway"], tmp_path, {"topic": topic}, **REAL)
    lines = [b"line %d \xff" % number for number in range(6000)]
    log = logs / "app.log"
    size = 0
    for turn in range(4):
        part = lines[turn * 1500 : (turn + 1) * 1500]
        client = ClientProcess(table, tmp_path)
        append(log, part)
        size += sum(len(line) + 1 for line in part)
        if turn % 2:
            client.kill()
        else:
            eventually(lambda size=size: confirmed_bytes(tmp_path) == size)  # type: ignore[misc]
            assert client.stop() == 0
        log.rename(logs / f"app.log.{9 - turn}")
    client = ClientProcess(table, tmp_path)
    eventually(lambda: confirmed_bytes(tmp_path) == size)
    assert client.stop() == 0
    assert main(["push", "check", "--config", str(client.config)]) == 0
    by_source = stored_values(broker_address, topic)
    assert len(by_source) == 4
    in_order = [line for source in sorted(by_source.values(), key=first_line) for line in lines_of_values(source)]
    assert in_order == [line.decode("utf-8", "replace").encode() for line in lines]


def test_json_lines_become_records_and_others_go_to_the_rejects_file(
    gateway_service: Service, topic: str, broker_address: str, registry_url: str, logs: Path, tmp_path: Path
) -> None:
    create(broker_address, topic)
    schema = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    url, body = f"{registry_url}/subjects/{topic}-value/versions", json.dumps({"schema": json.dumps(schema)})
    assert request(url, "POST", body.encode(), "application/json")[0] == 200
    data = b'{"id": 2}\n{"id": "three"}\nno json\n{"id": 4}\n'
    (logs / "orders.json").write_bytes(data)
    client = ClientProcess(
        config_table(gateway_service.addresses["gateway"], tmp_path, {"topic": topic, "format": "json"}, **REAL),
        tmp_path,
    )
    eventually(lambda: confirmed_bytes(tmp_path) == len(data))
    assert client.stop() == 0
    (records,) = stored_values(broker_address, topic).values()
    assert [(seqno, value[5:]) for seqno, value in records] == [(10, b"\x04"), (len(data), b"\x08")]
    rejects = [json.loads(line) for line in (tmp_path / "state" / "rejects.jsonl").read_text().splitlines()]
    assert sorted(reject["value"] for reject in rejects) == ["no json", '{"id": "three"}']
    assert any("id" in reject["message"] for reject in rejects)
