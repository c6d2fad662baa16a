"""Version 3 of the REST Proxy's interface: clusters, brokers, topics, configurations and consumer groups.

Each resource has its kind, its URL, the fields that identify it, and URLs of related resources. The cluster id of a
path is that of the brokers, or "any".
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


def _admin(request: Request) -> ClusterAdmin:
    found = request.app.state.admin
    assert isinstance(found, ClusterAdmin)
    return found


def _urls(request: Request) -> Urls:
    return Urls(request, request.path_params["cluster"])


async def clusters(request: Request) -> Response:
    caller_of(request).require_any()
    found = await _admin(request).cluster()
    base = str(request.base_url).rstrip("/")
    data = [_cluster(Urls(request, found.cluster_id), found)]
    metadata = {"self": f"{base}/v3/clusters", "next": None}
    return json_response({"kind": "KafkaClusterList", "metadata": metadata, "data": data})


async def cluster(request: Request) -> Response:
    found = await _admin(request).cluster()
    return json_response(_cluster(Urls(request, found.cluster_id), found))


def _cluster(urls: Urls, found: Any) -> dict[str, Any]:
    return urls.resource(
        "Cluster",
        "",
        (),
        controller=None if found.controller is None else urls.related("brokers", found.controller.id),
        brokers=urls.related("brokers"),
        consumer_groups=urls.related("consumer-groups"),
        topics=urls.related("topics"),
    )


async def brokers(request: Request) -> Response:
    urls, found = _urls(request), await _admin(request).cluster()
    return urls.collection("Broker", ("brokers",), [_broker(urls, node) for node in found.nodes])


async def broker(request: Request) -> Response:
    urls, found, wanted = _urls(request), await _admin(request).cluster(), request.path_params["broker"]
    for node in found.nodes:
        if node.id == wanted:
            return json_response(_broker(urls, node))
    raise GatewayError(Kind.NOT_FOUND, f"Broker {wanted} cannot be found")


def _broker(urls: Urls, node: Any) -> dict[str, Any]:
    fields = {"broker_id": node.id, "host": node.host, "port": node.port, "rack": node.rack}
    return urls.resource("Broker", f"/broker={node.id}", ("brokers", node.id), **fields)


async def topics(request: Request) -> Response:
    urls, caller = _urls(request), caller_of(request)
    found = await _admin(request).topics()
    data = [
        _topic(urls, name, len(topic.partitions), max((len(p.replicas) for p in topic.partitions.values()), default=0))
        for name, topic in sorted(found.items())
        if caller.may_describe(name)
    ]
    return urls.collection("Topic", ("topics",), data)


async def topic(request: Request) -> Response:
    name = request.path_params["topic"]
    caller_of(request).require_describe(name)
    return json_response(await _described(request, name))


async def _described(request: Request, name: str) -> dict[str, Any]:
    found = await _admin(request).topic(name)
    replicas = max((len(one.replicas) for one in found.partitions), default=0)
    return _topic(_urls(request), name, len(found.partitions), replicas, found.is_internal)


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
    await _admin(request).create_topic(name, partitions, replicas, configs, only_validates)
    if only_validates:
        urls = _urls(request)
        return json_response(_topic(urls, name, max(partitions, 0), max(replicas, 0)), 200)
    request.app.state.sender.forget_topic(name)
    created = await _described(request, name)
    return json_response(created, 201, Location=created["metadata"]["self"])


async def delete_topic(request: Request) -> Response:
    name = request.path_params["topic"]
    caller_of(request).require_administer(name)
    await _admin(request).topic(name)
    await _admin(request).delete_topic(name)
    request.app.state.sender.forget_topic(name)
    return Response(status_code=204)


async def change_topic(request: Request) -> Response:
    name = request.path_params["topic"]
    caller_of(request).require_administer(name)
    body = await _json_body(request, frozenset({"partitions_count"}))
    count = _count(body, "partitions_count", PARTITIONS_MAX)
    if count == DEFAULT_COUNT:
        raise GatewayError(Kind.BAD_REQUEST, "partitions_count: expected the number of partitions")
    await _admin(request).add_partitions(name, count)
    return json_response(await _described(request, name))


async def partitions(request: Request) -> Response:
    urls, name = _urls(request), request.path_params["topic"]
    caller_of(request).require_describe(name)
    found = await _admin(request).topic(name)
    place = ("topics", name, "partitions")
    return urls.collection("Partition", place, [_partition(urls, name, one) for one in found.partitions])


async def partition(request: Request) -> Response:
    return json_response(_partition(_urls(request), request.path_params["topic"], await _one_partition(request)))


async def replicas(request: Request) -> Response:
    urls, name, found = _urls(request), request.path_params["topic"], await _one_partition(request)
    place = ("topics", name, "partitions", found.id, "replicas")
    return urls.collection("Replica", place, [_replica(urls, name, found, node) for node in found.replicas])


async def replica(request: Request) -> Response:
    wanted, found = request.path_params["broker"], await _one_partition(request)
    for node in found.replicas:
        if node.id == wanted:
            return json_response(_replica(_urls(request), request.path_params["topic"], found, node))
    raise GatewayError(Kind.NOT_FOUND, f"Replica {wanted} cannot be found")


def _replica(urls: Urls, name: str, found: Any, node: Any) -> dict[str, Any]:
    return urls.resource(
        "Replica",
        f"/topic={name}/partition={found.id}/replica={node.id}",
        ("topics", name, "partitions", found.id, "replicas", node.id),
        topic_name=name,
        partition_id=found.id,
        broker_id=node.id,
        is_leader=found.leader is not None and found.leader.id == node.id,
        is_in_sync=any(one.id == node.id for one in found.isr),
        broker=urls.related("brokers", node.id),
    )


async def _one_partition(request: Request) -> Any:
    name, wanted = request.path_params["topic"], request.path_params["partition"]
    caller_of(request).require_describe(name)
    for one in (await _admin(request).topic(name)).partitions:
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
    )


async def configs(request: Request) -> Response:
    urls, name = _urls(request), request.path_params["topic"]
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
    return json_response(_config(_urls(request), name, found))


async def _configs(request: Request) -> Mapping[str, Any]:
    await _admin(request).topic(request.path_params["topic"])  # some brokers describe missing topics too
    return await _admin(request).configs(request.path_params["topic"])


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
    await _admin(request).alter_configs(topic, changes, only_validates)
    return Response(status_code=204)


async def groups(request: Request) -> Response:
    urls, admin = _urls(request), _admin(request)
    found = await admin.describe_groups(await admin.groups())
    return urls.collection("ConsumerGroup", ("consumer-groups",), [_group(urls, one) for one in found])


async def group(request: Request) -> Response:
    return json_response(_group(_urls(request), await _one_group(request)))


async def _one_group(request: Request) -> Any:
    """Returns the description of the group of the path. Kafka describes missing groups as dead."""
    (found,) = await _admin(request).describe_groups([request.path_params["group"]])
    if found.state.name == "DEAD":
        raise GatewayError(Kind.NOT_FOUND, f"Consumer Group {found.group_id} could not be found.")
    return found


def _group(urls: Urls, found: Any) -> dict[str, Any]:
    place = ("consumer-groups", found.group_id)
    coordinator = found.coordinator
    return urls.resource(
        "ConsumerGroup",
        f"/consumer-group={found.group_id}",
        place,
        consumer_group_id=found.group_id,
        is_simple=found.is_simple_consumer_group,
        partition_assignor=found.partition_assignor or "",
        state=found.state.name,
        coordinator=None if coordinator is None else urls.related("brokers", coordinator.id),
        consumers=urls.related(*place, "consumers"),
        lag_summary=urls.related(*place, "lag-summary"),
    )


async def consumers(request: Request) -> Response:
    urls, found = _urls(request), await _one_group(request)
    place = ("consumer-groups", found.group_id, "consumers")
    return urls.collection("Consumer", place, [_consumer(urls, found, member) for member in found.members])


async def consumer(request: Request) -> Response:
    found = await _one_group(request)
    return json_response(_consumer(_urls(request), found, _member(request, found)))


def _member(request: Request, found: Any) -> Any:
    wanted = request.path_params["consumer"]
    member = next((one for one in found.members if one.member_id == wanted), None)
    if member is None:
        raise GatewayError(Kind.NOT_FOUND, f"Consumer {wanted} could not be found in group {found.group_id}.")
    return member


def _consumer(urls: Urls, found: Any, member: Any) -> dict[str, Any]:
    place = ("consumer-groups", found.group_id, "consumers", member.member_id)
    return urls.resource(
        "Consumer",
        f"/consumer-group={found.group_id}/consumer={member.member_id}",
        place,
        consumer_group_id=found.group_id,
        consumer_id=member.member_id,
        instance_id=member.group_instance_id,
        client_id=member.client_id,
        assignments=urls.related(*place, "assignments"),
    )


async def assignments(request: Request) -> Response:
    place = (
        "consumer-groups",
        request.path_params["group"],
        "consumers",
        request.path_params["consumer"],
        "assignments",
    )
    return _urls(request).collection("ConsumerAssignment", place, await _assignments(request))


async def assignment(request: Request) -> Response:
    return json_response(_of_partition(request, await _assignments(request)))


async def _assignments(request: Request) -> list[dict[str, Any]]:
    urls, caller, found = _urls(request), caller_of(request), await _one_group(request)
    name = _member(request, found).member_id
    return [
        urls.resource(
            "ConsumerAssignment",
            f"/consumer-group={found.group_id}/consumer={name}/assignment={one.topic}:{one.partition}",
            (
                *("consumer-groups", found.group_id, "consumers", name),
                *("assignments", one.topic, "partitions", one.partition),
            ),
            consumer_group_id=found.group_id,
            consumer_id=name,
            topic_name=one.topic,
            partition_id=one.partition,
            partition=urls.related("topics", one.topic, "partitions", one.partition),
        )
        for one in _member(request, found).assignment.topic_partitions
        if caller.may_describe(one.topic)
    ]


def _of_partition(request: Request, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the resource of the topic partition of the path."""
    wanted = request.path_params["topic"], request.path_params["partition"]
    for row in rows:
        if (row["topic_name"], row["partition_id"]) == wanted:
            return row
    raise GatewayError(Kind.NOT_FOUND, f"Partition {wanted[1]} of topic {wanted[0]} cannot be found there")


async def lags(request: Request) -> Response:
    urls, found = _urls(request), await _one_group(request)
    return urls.collection(
        "ConsumerLag", ("consumer-groups", found.group_id, "lags"), await _lags(request, urls, found)
    )


async def lag(request: Request) -> Response:
    found = await _one_group(request)
    return json_response(_of_partition(request, await _lags(request, _urls(request), found)))


async def lag_summary(request: Request) -> Response:
    urls, found = _urls(request), await _one_group(request)
    rows = await _lags(request, urls, found)
    if not rows:
        raise GatewayError(Kind.NOT_FOUND, f"Consumer Group {found.group_id} has committed no offset.")
    largest = max(rows, key=lambda row: int(row["lag"]))
    place = ("topics", largest["topic_name"], "partitions", largest["partition_id"])
    summary = urls.resource(
        "ConsumerGroupLagSummary",
        f"/consumer-group={found.group_id}/lag-summary",
        ("consumer-groups", found.group_id, "lag-summary"),
        consumer_group_id=found.group_id,
        max_lag_consumer_id=largest["consumer_id"],
        max_lag_instance_id=largest["instance_id"],
        max_lag_client_id=largest["client_id"],
        max_lag_topic_name=largest["topic_name"],
        max_lag_partition_id=largest["partition_id"],
        max_lag=largest["lag"],
        total_lag=sum(row["lag"] for row in rows),
        max_lag_partition=urls.related(*place),
    )
    return json_response(summary)


async def _lags(request: Request, urls: Urls, found: Any) -> list[dict[str, Any]]:
    caller = caller_of(request)
    members = {
        (one.topic, one.partition): member for member in found.members for one in member.assignment.topic_partitions
    }
    rows = []
    for (topic_name, number), (committed, end) in (await _admin(request).lags(found.group_id)).items():
        if not caller.may_describe(topic_name):
            continue
        member = members.get((topic_name, number))
        rows.append(
            urls.resource(
                "ConsumerLag",
                f"/consumer-group={found.group_id}/lag={topic_name}:{number}",
                ("consumer-groups", found.group_id, "lags", topic_name, "partitions", number),
                consumer_group_id=found.group_id,
                topic_name=topic_name,
                partition_id=number,
                consumer_id=member.member_id if member else "",
                instance_id=member.group_instance_id if member else None,
                client_id=member.client_id if member else "",
                current_offset=committed,
                log_end_offset=end,
                lag=max(0, end - committed),
            )
        )
    return sorted(rows, key=lambda row: (-row["lag"], row["topic_name"], row["partition_id"]))


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
        await _admin(request).check_cluster(request.path_params["cluster"])
        return await endpoint(request)

    return checked


_CLUSTER: Final = "/v3/clusters/{cluster}"
_TOPIC: Final = f"{_CLUSTER}/topics/{{topic}}"
_GROUP: Final = f"{_CLUSTER}/consumer-groups/{{group}}"
_ENDPOINTS: Final = (
    ("GET", _CLUSTER, cluster),
    ("GET", f"{_CLUSTER}/brokers", brokers),
    ("GET", f"{_CLUSTER}/brokers/{{broker:int}}", broker),
    ("GET", f"{_CLUSTER}/topics", topics),
    ("POST", f"{_CLUSTER}/topics", create_topic),
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
    ("GET", f"{_CLUSTER}/consumer-groups", groups),
    ("GET", _GROUP, group),
    ("GET", f"{_GROUP}/consumers", consumers),
    ("GET", f"{_GROUP}/consumers/{{consumer}}", consumer),
    ("GET", f"{_GROUP}/consumers/{{consumer}}/assignments", assignments),
    ("GET", f"{_GROUP}/consumers/{{consumer}}/assignments/{{topic}}/partitions/{{partition:int}}", assignment),
    ("GET", f"{_GROUP}/lags", lags),
    ("GET", f"{_GROUP}/lags/{{topic}}/partitions/{{partition:int}}", lag),
    ("GET", f"{_GROUP}/lag-summary", lag_summary),
)
ROUTES: Final = (
    Route("/v3/clusters", clusters),
    *(Route(path, with_cluster(endpoint), methods=[method]) for method, path, endpoint in _ENDPOINTS),
)
