"""Version 3 of the REST Proxy's interface: clusters, brokers, topics and configurations.

Each resource has its kind, its URL, the fields that identify it, and URLs of related resources. The cluster id of a
path is that of the brokers, or "any". Clients that were generated from the REST Proxy's OpenAPI document require all
URLs of related resources. The URLs of ACLs, configurations of brokers and reassignments lead to 404.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from confluent_kafka.admin import ConfigSource  # type: ignore[attr-defined]
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.gateway.access import caller_of
from headrace.gateway.cluster_admin import ClusterAdmin
from headrace.gateway.errors import GatewayError, Kind
from headrace.gateway.request_body import body_of, parse_names
from headrace.gateway.responses import json_response
from headrace.gateway.rest_v3 import check_fields, check_media_type

DEFAULT_COUNT: Final = -1
"""The brokers' default number of partitions or replicas."""
PARTITIONS_MAX: Final = 10_000
REPLICAS_MAX: Final = 10_000


class Urls:
    """The URLs and resource names of a cluster's resources. A part of a path is a name or a number."""

    def __init__(self, request: Request, cluster: str) -> None:
        self._base = str(request.base_url).rstrip("/")
        self.cluster = cluster

    def url(self, *parts: str | int) -> str:
        words = ["v3", "clusters", self.cluster, *map(str, parts)]
        return "/".join([self._base, *(quote(word, safe=":") for word in words)])

    def related(self, *parts: str | int) -> dict[str, str]:
        return {"related": self.url(*parts)}

    def resource(self, kind: str, crn: str, parts: Sequence[str | int], **fields: Any) -> dict[str, Any]:
        """Returns a resource.

        Args:
            kind: its kind, without the prefix.
            crn: its Confluent resource name below the cluster; "" is the cluster.
            parts: its path below the cluster.
            fields: its other fields.
        """
        metadata = {"self": self.url(*parts), "resource_name": f"crn:///kafka={self.cluster}{crn}"}
        return {"kind": f"Kafka{kind}", "metadata": metadata, "cluster_id": self.cluster, **fields}

    def collection(self, kind: str, parts: Sequence[str | int], data: Sequence[Any]) -> Response:
        metadata = {"self": self.url(*parts), "next": None}
        return json_response({"kind": f"Kafka{kind}List", "metadata": metadata, "data": data})


def admin_of(request: Request) -> ClusterAdmin:
    found = request.app.state.admin
    assert isinstance(found, ClusterAdmin)
    return found


def urls_of(request: Request) -> Urls:
    return Urls(request, request.path_params["cluster"])


async def clusters(request: Request) -> Response:
    caller_of(request).require_any()
    found = await admin_of(request).cluster()
    base = str(request.base_url).rstrip("/")
    data = [_cluster(Urls(request, found.cluster_id), found)]
    metadata = {"self": f"{base}/v3/clusters", "next": None}
    return json_response({"kind": "KafkaClusterList", "metadata": metadata, "data": data})


async def cluster(request: Request) -> Response:
    found = await admin_of(request).cluster()
    return json_response(_cluster(Urls(request, found.cluster_id), found))


def _cluster(urls: Urls, found: Any) -> dict[str, Any]:
    return urls.resource(
        "Cluster",
        "",
        (),
        controller=None if found.controller is None else urls.related("brokers", found.controller.id),
        acls=urls.related("acls"),
        brokers=urls.related("brokers"),
        broker_configs=urls.related("broker-configs"),
        consumer_groups=urls.related("consumer-groups"),
        topics=urls.related("topics"),
        partition_reassignments=urls.related("topics", "-", "partitions", "-", "reassignment"),
    )


async def brokers(request: Request) -> Response:
    urls, found = urls_of(request), await admin_of(request).cluster()
    return urls.collection("Broker", ("brokers",), [_broker(urls, node) for node in found.nodes])


async def broker(request: Request) -> Response:
    urls, found, wanted = urls_of(request), await admin_of(request).cluster(), request.path_params["broker"]
    for node in found.nodes:
        if node.id == wanted:
            return json_response(_broker(urls, node))
    raise GatewayError(Kind.NOT_FOUND, f"Broker {wanted} cannot be found")


def _broker(urls: Urls, node: Any) -> dict[str, Any]:
    place = ("brokers", node.id)
    return urls.resource(
        "Broker",
        f"/broker={node.id}",
        place,
        broker_id=node.id,
        host=node.host,
        port=node.port,
        rack=node.rack,
        configs=urls.related(*place, "configs"),
        partition_replicas=urls.related(*place, "partition-replicas"),
    )


async def broker_replicas(request: Request) -> Response:
    urls, caller, wanted = urls_of(request), caller_of(request), request.path_params["broker"]
    if wanted not in {node.id for node in (await admin_of(request).cluster()).nodes}:
        raise GatewayError(Kind.NOT_FOUND, f"Broker {wanted} cannot be found")
    found = [
        _replica(urls, name, number, wanted, is_leader=one.leader == wanted, is_in_sync=wanted in one.isrs)
        for name, topic in sorted((await admin_of(request).topics()).items())
        if caller.may_describe(name)
        for number, one in sorted(topic.partitions.items())
        if wanted in one.replicas
    ]
    return urls.collection("Replica", ("brokers", wanted, "partition-replicas"), found)


async def topics(request: Request) -> Response:
    urls, caller = urls_of(request), caller_of(request)
    found = await admin_of(request).topics()
    data = [
        _topic(urls, name, len(topic.partitions), max((len(p.replicas) for p in topic.partitions.values()), default=0))
        for name, topic in sorted(found.items())
        if caller.may_describe(name)
    ]
    return urls.collection("Topic", ("topics",), data)


async def topic(request: Request) -> Response:
    name = request.path_params["topic"]
    caller_of(request).require_describe(name)
    return json_response(_described(request, await admin_of(request).topic(name)))


def _described(request: Request, found: Any) -> dict[str, Any]:
    replicas = max((len(one.replicas) for one in found.partitions), default=0)
    return _topic(urls_of(request), found.name, len(found.partitions), replicas, found.is_internal)


def _topic(urls: Urls, name: str, partitions: int, replicas: int, is_internal: bool | None = None) -> dict[str, Any]:
    place = ("topics", name)
    return urls.resource(
        "Topic",
        f"/topic={name}",
        place,
        topic_name=name,
        is_internal=name.startswith("__") if is_internal is None else is_internal,
        replication_factor=replicas,
        partitions_count=partitions,
        partitions=urls.related(*place, "partitions"),
        configs=urls.related(*place, "configs"),
        partition_reassignments=urls.related(*place, "partitions", "-", "reassignment"),
        authorized_operations=[],
    )


async def create_topic(request: Request) -> Response:
    body = await _json_body(
        request, frozenset({"topic_name", "partitions_count", "replication_factor", "configs", "validate_only"})
    )
    name = body.get("topic_name")
    if not isinstance(name, str) or not name:
        raise GatewayError(Kind.BAD_REQUEST, "topic_name: expected the name of the topic")
    caller_of(request).require_administer(name)
    partitions = _count(body, "partitions_count", PARTITIONS_MAX)
    replicas = _count(body, "replication_factor", REPLICAS_MAX)
    configs = {key: value for key, value in _changes(body.get("configs"), "configs", with_operation=False) if value}
    only_validates = _flag(body, "validate_only")
    await admin_of(request).create_topic(name, partitions, replicas, configs, only_validates)
    if only_validates:
        urls = urls_of(request)
        return json_response(_topic(urls, name, max(partitions, 0), max(replicas, 0)), 200)
    request.app.state.sender.forget_topic(name)
    created = _described(request, await admin_of(request).changed_topic(name, 1))
    return json_response(created, 201, Location=created["metadata"]["self"])


async def delete_topic(request: Request) -> Response:
    name = request.path_params["topic"]
    caller_of(request).require_administer(name)
    await admin_of(request).topic(name)
    await admin_of(request).delete_topic(name)
    request.app.state.sender.forget_topic(name)
    return Response(status_code=204)


async def change_topic(request: Request) -> Response:
    name = request.path_params["topic"]
    caller_of(request).require_administer(name)
    body = await _json_body(request, frozenset({"partitions_count"}))
    count = _count(body, "partitions_count", PARTITIONS_MAX)
    if count == DEFAULT_COUNT:
        raise GatewayError(Kind.BAD_REQUEST, "partitions_count: expected the number of partitions")
    await admin_of(request).add_partitions(name, count)
    return json_response(_described(request, await admin_of(request).changed_topic(name, count)))


async def partitions(request: Request) -> Response:
    urls, name = urls_of(request), request.path_params["topic"]
    caller_of(request).require_describe(name)
    found = await admin_of(request).topic(name)
    place = ("topics", name, "partitions")
    return urls.collection("Partition", place, [_partition(urls, name, one) for one in found.partitions])


async def partition(request: Request) -> Response:
    return json_response(_partition(urls_of(request), request.path_params["topic"], await _one_partition(request)))


async def replicas(request: Request) -> Response:
    urls, name, found = urls_of(request), request.path_params["topic"], await _one_partition(request)
    place = ("topics", name, "partitions", found.id, "replicas")
    return urls.collection("Replica", place, [_described_replica(urls, name, found, node) for node in found.replicas])


async def replica(request: Request) -> Response:
    wanted, found = request.path_params["broker"], await _one_partition(request)
    for node in found.replicas:
        if node.id == wanted:
            return json_response(_described_replica(urls_of(request), request.path_params["topic"], found, node))
    raise GatewayError(Kind.NOT_FOUND, f"Replica {wanted} cannot be found")


def _described_replica(urls: Urls, name: str, found: Any, node: Any) -> dict[str, Any]:
    is_leader = found.leader is not None and found.leader.id == node.id
    is_in_sync = any(one.id == node.id for one in found.isr)
    return _replica(urls, name, found.id, node.id, is_leader=is_leader, is_in_sync=is_in_sync)


def _replica(
    urls: Urls, name: str, partition: int, broker: int, *, is_leader: bool, is_in_sync: bool
) -> dict[str, Any]:
    return urls.resource(
        "Replica",
        f"/topic={name}/partition={partition}/replica={broker}",
        ("topics", name, "partitions", partition, "replicas", broker),
        topic_name=name,
        partition_id=partition,
        broker_id=broker,
        is_leader=is_leader,
        is_in_sync=is_in_sync,
        broker=urls.related("brokers", broker),
    )


async def _one_partition(request: Request) -> Any:
    name, wanted = request.path_params["topic"], request.path_params["partition"]
    caller_of(request).require_describe(name)
    for one in (await admin_of(request).topic(name)).partitions:
        if one.id == wanted:
            return one
    raise GatewayError(Kind.PARTITION_NOT_FOUND, f"topic {name} has no partition {wanted}")


def _partition(urls: Urls, name: str, found: Any) -> dict[str, Any]:
    place = ("topics", name, "partitions", found.id)
    return urls.resource(
        "Partition",
        f"/topic={name}/partition={found.id}",
        place,
        topic_name=name,
        partition_id=found.id,
        leader=None if found.leader is None else urls.related(*place, "replicas", found.leader.id),
        replicas=urls.related(*place, "replicas"),
        reassignment=urls.related(*place, "reassignment"),
    )


async def configs(request: Request) -> Response:
    urls, name = urls_of(request), request.path_params["topic"]
    caller_of(request).require_describe(name)
    found = await _configs(request)
    return urls.collection(
        "TopicConfig", ("topics", name, "configs"), [_config(urls, name, found[key]) for key in sorted(found)]
    )


async def config(request: Request) -> Response:
    name, key = request.path_params["topic"], request.path_params["config"]
    caller_of(request).require_describe(name)
    found = (await _configs(request)).get(key)
    if found is None:
        raise GatewayError(Kind.NOT_FOUND, f"Config {key} cannot be found for topic {name}")
    return json_response(_config(urls_of(request), name, found))


async def _configs(request: Request) -> Mapping[str, Any]:
    await admin_of(request).topic(request.path_params["topic"])  # some brokers describe missing topics too
    return await admin_of(request).configs(request.path_params["topic"])


def _config(urls: Urls, name: str, entry: Any) -> dict[str, Any]:
    return urls.resource(
        "TopicConfig",
        f"/topic={name}/config={entry.name}",
        ("topics", name, "configs", entry.name),
        topic_name=name,
        name=entry.name,
        value=None if entry.is_sensitive else entry.value,
        is_default=bool(entry.is_default),
        is_read_only=bool(entry.is_read_only),
        is_sensitive=bool(entry.is_sensitive),
        source=_source(entry.source),
        synonyms=[
            {"name": one.name, "value": one.value, "source": _source(one.source)}
            for one in (entry.synonyms or {}).values()
        ],
    )


def _source(number: int) -> str:
    return ConfigSource(number).name.removesuffix("_CONFIG") + "_CONFIG"


async def set_config(request: Request) -> Response:
    caller_of(request).require_administer(request.path_params["topic"])
    body = await _json_body(request, frozenset({"value"}))
    return await _altered(request, [(request.path_params["config"], _config_text(body.get("value"), "value"))])


async def reset_config(request: Request) -> Response:
    caller_of(request).require_administer(request.path_params["topic"])
    return await _altered(request, [(request.path_params["config"], None)])


async def alter_configs(request: Request) -> Response:
    caller_of(request).require_administer(request.path_params["topic"])
    body = await _json_body(request, frozenset({"data", "validate_only"}))
    changes = _changes(body.get("data"), "data", with_operation=True)
    if not changes:
        raise GatewayError(Kind.BAD_REQUEST, "data: expected at least one change")
    return await _altered(request, changes, only_validates=_flag(body, "validate_only"))


async def _altered(
    request: Request, changes: Sequence[tuple[str, str | None]], *, only_validates: bool = False
) -> Response:
    topic = request.path_params["topic"]
    known = await _configs(request)
    unknown = next((name for name, _ in changes if name not in known), None)
    if unknown is not None:
        raise GatewayError(Kind.NOT_FOUND, f"Config {unknown} cannot be found for topic {topic}")
    await admin_of(request).alter_configs(topic, changes, only_validates)
    return Response(status_code=204)


async def _json_body(request: Request, names: frozenset[str]) -> Mapping[str, Any]:
    check_media_type(request.headers.get("content-type", ""))
    async with body_of(request, request.app.state.budget) as reader:
        body = parse_names(await reader.read())
    check_fields(body, names, "the body")
    found: Mapping[str, Any] = body
    return found


def _count(body: Mapping[str, Any], name: str, highest: int) -> int:
    value = body.get(name)
    if value is None or value == DEFAULT_COUNT:
        return DEFAULT_COUNT
    if type(value) is int and 0 < value <= highest:
        return value
    raise GatewayError(Kind.BAD_REQUEST, f"{name}: expected a number from 1 to {highest}")


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise GatewayError(Kind.BAD_REQUEST, f"{name}: expected true or false")


def _changes(value: Any, name: str, *, with_operation: bool) -> list[tuple[str, str | None]]:
    """Returns the changes of a list of configurations: names with their new values, or None for the default."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise GatewayError(Kind.BAD_REQUEST, f"{name}: expected a list")
    found: list[tuple[str, str | None]] = []
    for index, entry in enumerate(value):
        where = f"{name}[{index}]"
        check_fields(entry, frozenset({"name", "value", "operation"} if with_operation else {"name", "value"}), where)
        if not isinstance(entry.get("name"), str) or not entry["name"]:
            raise GatewayError(Kind.BAD_REQUEST, f"{where}.name: expected a text")
        operation = entry.get("operation") or "SET"
        if operation not in ("SET", "DELETE"):
            raise GatewayError(Kind.BAD_REQUEST, f"{where}.operation: expected SET or DELETE")
        is_set = operation == "SET"
        found.append((entry["name"], _config_text(entry.get("value"), f"{where}.value") if is_set else None))
    return found


def _config_text(value: Any, where: str) -> str:
    """Returns the value of a configuration. Numbers and booleans are texts too, as in the REST Proxy."""
    if isinstance(value, str):
        return value
    if isinstance(value, (bool, int, float)):
        return json.dumps(value)
    raise GatewayError(Kind.BAD_REQUEST, f"{where}: expected a text")


def with_cluster(endpoint: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """Returns an endpoint that first checks that the client has any permission, and the cluster id of the path."""

    @functools.wraps(endpoint)
    async def checked(request: Request) -> Response:
        caller_of(request).require_any()
        await admin_of(request).check_cluster(request.path_params["cluster"])
        return await endpoint(request)

    return checked


CLUSTER: Final = "/v3/clusters/{cluster}"
_TOPIC: Final = f"{CLUSTER}/topics/{{topic}}"
_ENDPOINTS: Final = (
    ("GET", CLUSTER, cluster),
    ("GET", f"{CLUSTER}/brokers", brokers),
    ("GET", f"{CLUSTER}/brokers/{{broker:int}}", broker),
    ("GET", f"{CLUSTER}/brokers/{{broker:int}}/partition-replicas", broker_replicas),
    ("GET", f"{CLUSTER}/topics", topics),
    ("POST", f"{CLUSTER}/topics", create_topic),
    ("GET", _TOPIC, topic),
    ("DELETE", _TOPIC, delete_topic),
    ("PATCH", _TOPIC, change_topic),
    ("GET", f"{_TOPIC}/partitions", partitions),
    ("GET", f"{_TOPIC}/partitions/{{partition:int}}", partition),
    ("GET", f"{_TOPIC}/partitions/{{partition:int}}/replicas", replicas),
    ("GET", f"{_TOPIC}/partitions/{{partition:int}}/replicas/{{broker:int}}", replica),
    ("GET", f"{_TOPIC}/configs", configs),
    ("POST", f"{_TOPIC}/configs:alter", alter_configs),
    ("GET", f"{_TOPIC}/configs/{{config}}", config),
    ("PUT", f"{_TOPIC}/configs/{{config}}", set_config),
    ("DELETE", f"{_TOPIC}/configs/{{config}}", reset_config),
)
ROUTES: Final = (
    Route("/v3/clusters", clusters),
    *(Route(path, with_cluster(endpoint), methods=[method]) for method, path, endpoint in _ENDPOINTS),
)
