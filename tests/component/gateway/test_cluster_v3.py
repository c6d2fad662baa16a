"""Version 3 of the REST Proxy's interface: clusters, brokers, topics, configurations and consumer groups."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from confluent_kafka import Consumer, TopicPartition

from headrace.registry.access.passwords import Cost, PasswordHash
from support.gateway import GatewayClient
from support.running_service import StartService

pytestmark = pytest.mark.servers

TIMEOUT_S = 60
RECORD = {"partition_id": 1, "value": {"type": "STRING", "data": "x"}}


class Cluster:
    """Requests to the resources of the cluster."""

    def __init__(self, gateway: GatewayClient) -> None:
        self.gateway = gateway
        (found,) = gateway.request("GET", "/v3/clusters").json["data"]
        self.id = found["cluster_id"]

    def get(self, path: str) -> Any:
        response = self.gateway.request("GET", f"/v3/clusters/{self.id}{path}")
        assert response.status == 200, response.content
        return response.json

    def data(self, path: str) -> list[dict[str, Any]]:
        found = self.get(path)
        assert found["metadata"]["next"] is None
        assert all(one["cluster_id"] == self.id and f"{found['kind']}" == f"{one['kind']}List" for one in found["data"])
        return list(found["data"])

    def problem(self, method: str, path: str, body: Any = None) -> tuple[int, int]:
        return self.gateway.request(method, f"/v3/clusters/{self.id}{path}", body).problem

    def status(self, method: str, path: str, body: Any = None) -> int:
        return self.gateway.request(method, f"/v3/clusters/{self.id}{path}", body).status


@pytest.fixture
def cluster(gateway: GatewayClient) -> Cluster:
    return Cluster(gateway)


def urls(document: Any) -> list[str]:
    """Returns all URLs of resources and of related ones."""
    if isinstance(document, dict):
        own = [document[name] for name in ("self", "related") if name in document]
        return own + [url for value in document.values() for url in urls(value)]
    return [url for value in document for url in urls(value)] if isinstance(document, list) else []


NOT_IMPLEMENTED = re.compile(r".*/(acls|broker-configs|brokers/1/configs|partitions/[^/]+/reassignment)")


def test_every_url_has_a_resource(cluster: Cluster, broker_address: str, topic: str) -> None:
    assert cluster.status("POST", "/topics", {"topic_name": topic, "partitions_count": 2}) == 201
    cluster.gateway.produce(topic, RECORD)
    consumer = reader(broker_address, topic)
    root = f"http://{cluster.gateway.host}:{cluster.gateway.port}/v3/clusters/{cluster.id}"
    group = f"/consumer-groups/{topic}-readers"
    found, waiting = set(), [root, f"{root}{group}/lags"]
    while waiting:
        url = waiting.pop()
        if url not in found and "__consumer_offsets" not in url:
            found.add(url)
            path = url.partition(str(cluster.gateway.port))[2]
            response = cluster.gateway.request("GET", path)
            if NOT_IMPLEMENTED.fullmatch(url):
                assert response.problem == (404, 404)
                continue
            assert response.status == 200 or "lag-summary" in url or "/partitions/0" in url, url
            waiting += urls(response.json)
    consumer.close()
    for end in ("/consumers/C/assignments/{}/partitions/1", "/lags/{}/partitions/1"):
        pattern = end.format(topic).replace("/C/", "/[^/]+/")
        assert any(re.search(f"{pattern}$", url) for url in found), end
    for path in ("/consumers/none", "/consumers/none/assignments/a/partitions/0", "/lags/none/partitions/0"):
        assert cluster.problem("GET", group + path) == (404, 404)
    assert any(url.endswith(f"/topics/{topic}/partitions/1/replicas") for url in found)
    on_broker = [one for one in cluster.data("/brokers/1/partition-replicas") if one["topic_name"] == topic]
    assert on_broker == [cluster.data(f"/topics/{topic}/partitions/{number}/replicas")[0] for number in (0, 1)]
    assert cluster.problem("GET", "/brokers/99/partition-replicas") == (404, 404)
    assert cluster.problem("GET", "/brokers/99") == (404, 404)


def test_topic_is_created_extended_and_deleted(cluster: Cluster, topic: str) -> None:
    body = {
        "topic_name": topic,
        "partitions_count": 2,
        "replication_factor": 1,
        "configs": [{"name": "retention.ms", "value": "60000"}],
    }
    assert cluster.status("POST", "/topics", {**body, "validate_only": True}) == 200
    assert cluster.problem("GET", f"/topics/{topic}") == (404, 40403)
    created = cluster.gateway.post(f"/v3/clusters/{cluster.id}/topics", body)
    assert (created.status, created.json["partitions_count"]) == (201, 2)
    assert created.headers["location"] == created.json["metadata"]["self"]
    assert cluster.problem("POST", "/topics", body) == (400, 40002)
    assert topic in [one["topic_name"] for one in cluster.data("/topics")]
    assert [one["partition_id"] for one in cluster.data(f"/topics/{topic}/partitions")] == [0, 1]
    (replica,) = cluster.data(f"/topics/{topic}/partitions/1/replicas")
    assert (replica["is_leader"], replica["is_in_sync"]) == (True, True)
    extended = cluster.gateway.request("PATCH", f"/v3/clusters/any/topics/{topic}", {"partitions_count": 3})
    assert extended.json["partitions_count"] == 3
    assert cluster.problem("PATCH", f"/topics/{topic}", {"partitions_count": 1}) == (400, 40002)
    assert cluster.gateway.produce(topic, RECORD)[0]["error_code"] == 200
    assert cluster.status("DELETE", f"/topics/{topic}") == 204
    assert cluster.problem("DELETE", f"/topics/{topic}") == (404, 40403)
    assert cluster.problem("GET", f"/topics/{topic}/partitions/0") == (404, 40403)


def test_configurations_are_set_and_reset(cluster: Cluster, topic: str) -> None:
    cluster.status("POST", "/topics", {"topic_name": topic})
    path = f"/topics/{topic}/configs"
    defaults = {one["name"]: one["value"] for one in cluster.data(path)}
    assert cluster.status("PUT", f"{path}/retention.ms", {"value": 70000}) == 204
    found = cluster.get(f"{path}/retention.ms")
    assert (found["value"], found["is_default"], found["source"]) == ("70000", False, "DYNAMIC_TOPIC_CONFIG")
    changes = [{"name": "retention.ms", "operation": "DELETE"}, {"name": "segment.ms", "value": "80000"}]
    assert cluster.status("POST", f"{path}:alter", {"data": changes, "validate_only": True}) == 204
    assert cluster.get(f"{path}/retention.ms")["value"] == "70000"
    assert cluster.status("POST", f"{path}:alter", {"data": changes}) == 204
    assert cluster.get(f"{path}/retention.ms")["value"] == defaults["retention.ms"]
    assert cluster.get(f"{path}/segment.ms")["value"] == "80000"
    assert cluster.status("DELETE", f"{path}/segment.ms") == 204
    for method, end, body in (
        ("GET", "/none", None),
        ("PUT", "/none", {"value": "1"}),
        ("DELETE", "/none", None),
        ("POST", ":alter", {"data": [changes[1], {"name": "none", "value": "1"}]}),
    ):
        assert (method, cluster.problem(method, f"{path}{end}", body)) == (method, (404, 404))
    assert {one["name"]: one["value"] for one in cluster.data(path)} == defaults


def reader(broker_address: str, topic: str) -> Consumer:
    """Returns a member of a group of its own, which has committed offset 1 of partition 1."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker_address,
            "group.id": f"{topic}-readers",
            "client.id": "reader",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    assert consumer.poll(TIMEOUT_S) is not None
    consumer.commit(offsets=[TopicPartition(topic, 1, 1)], asynchronous=False)
    return consumer


def test_groups_have_consumers_assignments_and_lags(cluster: Cluster, broker_address: str, topic: str) -> None:
    cluster.status("POST", "/topics", {"topic_name": topic, "partitions_count": 2})
    cluster.gateway.produce(topic, RECORD, RECORD, RECORD)
    group = f"/consumer-groups/{topic}-readers"
    assert cluster.problem("GET", group) == (404, 404)
    consumer = reader(broker_address, topic)
    assert cluster.get(group)["state"] == "STABLE"
    assert f"{topic}-readers" in [one["consumer_group_id"] for one in cluster.data("/consumer-groups")]
    (member,) = cluster.data(f"{group}/consumers")
    assert member["client_id"] == "reader"
    assigned = cluster.data(f"{group}/consumers/{member['consumer_id']}/assignments")
    assert [one["partition_id"] for one in assigned] == [0, 1]
    place = f"/consumer={member['consumer_id']}/assignment={topic}/partition=1"
    assert (
        assigned[1]["metadata"]["resource_name"] == f"crn:///kafka={cluster.id}/consumer-group={topic}-readers{place}"
    )
    (lag,) = cluster.data(f"{group}/lags")
    assert [lag[name] for name in ("partition_id", "current_offset", "log_end_offset", "lag")] == [1, 1, 3, 2]
    assert lag["consumer_id"] == member["consumer_id"]
    place = f"/consumer-group={topic}-readers/lag={topic}/partition=1"
    assert lag["metadata"]["resource_name"] == f"crn:///kafka={cluster.id}{place}"
    summary = cluster.get(f"{group}/lag-summary")
    assert (summary["max_lag"], summary["total_lag"], summary["max_lag_topic_name"]) == (2, 2, topic)
    assert summary["max_lag_consumer"]["related"].endswith(f"/consumers/{quote(member['consumer_id'], safe='')}")
    consumer.close()
    (lag,) = cluster.data(f"{group}/lags")
    assert (lag["consumer_id"], lag["lag"]) == ("", 2)


REFUSED: list[tuple[str, str, Any, tuple[int, int]]] = [
    ("POST", "/topics", {}, (400, 400)),
    ("POST", "/topics", [], (400, 400)),
    ("POST", "/topics", {"topic_name": "a b"}, (400, 40002)),
    ("POST", "/topics", {"topic_name": "a", "partitions": 1}, (400, 400)),
    ("POST", "/topics", {"topic_name": "a", "partitions_count": 0}, (400, 400)),
    ("POST", "/topics", {"topic_name": "a", "partitions_count": True}, (400, 400)),
    ("POST", "/topics", {"topic_name": "a", "replication_factor": 10_001}, (400, 400)),
    ("POST", "/topics", {"topic_name": "a", "validate_only": 1}, (400, 400)),
    ("POST", "/topics", {"topic_name": "a", "configs": [{"name": "no.such", "value": "1"}]}, (400, 40002)),
    ("POST", "/topics", {"topic_name": "a", "configs": {"a": "b"}}, (400, 400)),
    ("POST", "/topics", b"{", (400, 400)),
    ("POST", "/topics", {"topic_name": "a\0b"}, (400, 400)),
    ("POST", "/topics", {"topic_name": "a", "configs": [{"name": "\ud800", "value": "1"}]}, (400, 400)),
    ("POST", "/topics/none/configs:alter", {"data": [{"name": "a" * 40_000, "value": "1"}]}, (400, 400)),
    ("GET", "/topics/a%00b", None, (404, 404)),
    ("GET", "/consumer-groups/a%00b", None, (404, 404)),
    ("PATCH", "/topics/a", {}, (400, 400)),
    ("PATCH", "/topics/none", {"partitions_count": 9}, (404, 40403)),
    ("GET", "/topics/none", None, (404, 40403)),
    ("GET", "/topics/a%20b", None, (404, 40403)),
    ("GET", "/topics/none/configs", None, (404, 40403)),
    ("PUT", "/topics/none/configs/retention.ms", {"value": "1"}, (404, 40403)),
    ("PUT", "/topics/none/configs/retention.ms", {"value": [1]}, (400, 400)),
    ("POST", "/topics/none/configs:alter", {"data": []}, (400, 400)),
    ("POST", "/topics/none/configs:alter", {"data": [{"name": "", "operation": "DELETE"}]}, (400, 400)),
    ("POST", "/topics/none/configs:alter", {"data": [{"name": "a", "operation": "ADD"}]}, (400, 400)),
    ("GET", "/consumer-groups/none/lags", None, (404, 404)),
    ("PUT", "/topics", {}, (405, 405)),
]


def test_requests_for_another_cluster_are_refused(cluster: Cluster, topic: str) -> None:
    cluster.status("POST", "/topics", {"topic_name": topic})
    for method, path, body in (
        ("GET", "", None),
        ("GET", "/brokers", None),
        ("GET", "/topics", None),
        ("POST", "/topics", {"topic_name": "other"}),
        ("GET", f"/topics/{topic}/configs", None),
        ("DELETE", f"/topics/{topic}", None),
        ("GET", "/consumer-groups", None),
    ):
        response = cluster.gateway.request(method, f"/v3/clusters/other{path}", body)
        assert (method, path, response.problem) == (method, path, (404, 404))
    assert cluster.gateway.request("GET", "/v3/clusters/any").json["cluster_id"] == cluster.id
    assert cluster.status("GET", f"/topics/{topic}") == 200


def test_invalid_requests_are_refused(cluster: Cluster) -> None:
    found = [(method, path, body, cluster.problem(method, path, body)) for method, path, body, _ in REFUSED]
    assert found == REFUSED


def test_users_see_and_change_only_their_topics(
    tmp_path: Path, start_service: StartService, broker_address: str, cluster: Cluster
) -> None:
    for name in ("seen", "hidden"):
        cluster.status("POST", "/topics", {"topic_name": name})
    hashed = PasswordHash.of("secret", bytes(16), Cost(log2_n=4, r=1, p=1))
    users = tmp_path / "users"
    users.write_text(f"user ann {hashed}\ngrant ann write seen-value\ngrant ann admin new-value\n")
    environment = {"HEADRACE__KAFKA__BOOTSTRAP_SERVERS": broker_address, "HEADRACE__REGISTRY__USERS": str(users)}
    command = ("headrace", "gateway", "serve", "--gateway-listen", "127.0.0.1:0", "--data-dir", str(tmp_path))
    url = start_service(*command, environment=environment).addresses["gateway"]
    ann = Cluster(GatewayClient(url, user="ann", password="secret"))
    assert [one["topic_name"] for one in ann.data("/topics")] == ["seen"]
    assert {one["topic_name"] for one in ann.data("/brokers/1/partition-replicas")} == {"seen"}
    assert ann.status("GET", "/topics/seen/configs") == 200
    for method, path, body in (
        ("GET", "/topics/hidden", None),
        ("GET", "/topics/hidden/partitions", None),
        ("GET", "/topics/hidden/partitions/0", None),
        ("GET", "/topics/hidden/partitions/0/replicas", None),
        ("GET", "/topics/hidden/configs", None),
        ("GET", "/topics/hidden/configs/retention.ms", None),
        ("PATCH", "/topics/seen", {"partitions_count": 9}),
        ("DELETE", "/topics/seen", None),
        ("PUT", "/topics/seen/configs/retention.ms", {"value": "1"}),
        ("DELETE", "/topics/seen/configs/retention.ms", None),
        ("POST", "/topics/seen/configs:alter", {"data": []}),
        ("POST", "/topics", {"topic_name": "hidden2"}),
    ):
        assert (method, path, ann.problem(method, path, body)) == (method, path, (403, 40301))
    assert ann.status("POST", "/topics", {"topic_name": "new"}) == 201
    for path in ("", "/1/brokers", "/1/topics", "/1/consumer-groups", "/1/consumer-groups/g/lags"):
        assert GatewayClient(url).request("GET", f"/v3/clusters{path}").problem == (401, 40101)
