"""Version 3 of the REST Proxy's interface: consumer groups, their consumers, assignments and lags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.gateway.access import caller_of
from headrace.gateway.errors import GatewayError, Kind
from headrace.gateway.responses import json_response
from headrace.gateway.rest_v3_cluster import CLUSTER, Urls, admin_of, urls_of, with_cluster


async def groups(request: Request) -> Response:
    urls, admin = urls_of(request), admin_of(request)
    found = await admin.describe_groups(await admin.groups())
    return urls.collection("ConsumerGroup", ("consumer-groups",), [_group(urls, one) for one in found])


async def group(request: Request) -> Response:
    return json_response(_group(urls_of(request), await _one_group(request)))


async def _one_group(request: Request) -> Any:
    """Returns the description of the group of the path. Kafka describes missing groups as dead."""
    (found,) = await admin_of(request).describe_groups([request.path_params["group"]])
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
    urls, found = urls_of(request), await _one_group(request)
    place = ("consumer-groups", found.group_id, "consumers")
    return urls.collection("Consumer", place, [_consumer(urls, found, member) for member in found.members])


async def consumer(request: Request) -> Response:
    found = await _one_group(request)
    return json_response(_consumer(urls_of(request), found, _member(request, found)))


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
    return urls_of(request).collection("ConsumerAssignment", place, await _assignments(request))


async def assignment(request: Request) -> Response:
    return json_response(_of_partition(request, await _assignments(request)))


async def _assignments(request: Request) -> list[dict[str, Any]]:
    urls, caller, found = urls_of(request), caller_of(request), await _one_group(request)
    member = _member(request, found)
    name = member.member_id
    assigned = sorted(member.assignment.topic_partitions, key=lambda one: (one.topic, one.partition))
    return [
        urls.resource(
            "ConsumerAssignment",
            f"/consumer-group={found.group_id}/consumer={name}/assignment={one.topic}/partition={one.partition}",
            (
                *("consumer-groups", found.group_id, "consumers", name),
                *("assignments", one.topic, "partitions", one.partition),
            ),
            consumer_group_id=found.group_id,
            consumer_id=name,
            topic_name=one.topic,
            partition_id=one.partition,
            partition=urls.related("topics", one.topic, "partitions", one.partition),
            lag=urls.related("consumer-groups", found.group_id, "lags", one.topic, "partitions", one.partition),
        )
        for one in assigned
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
    urls, found = urls_of(request), await _one_group(request)
    return urls.collection(
        "ConsumerLag", ("consumer-groups", found.group_id, "lags"), await _lags(request, urls, found)
    )


async def lag(request: Request) -> Response:
    found = await _one_group(request)
    return json_response(_of_partition(request, await _lags(request, urls_of(request), found)))


async def lag_summary(request: Request) -> Response:
    urls, found = urls_of(request), await _one_group(request)
    rows = await _lags(request, urls, found)
    if not rows:
        raise GatewayError(Kind.NOT_FOUND, f"Consumer Group {found.group_id} has committed no offset.")
    largest = max(rows, key=lambda row: int(row["lag"]))
    place = ("topics", largest["topic_name"], "partitions", largest["partition_id"])
    owner = [largest["consumer_id"]] if largest["consumer_id"] else []
    summary = urls.resource(
        "ConsumerGroupLagSummary",
        f"/consumer-group={found.group_id}/lag-summary",
        ("consumer-groups", found.group_id, "lag-summary"),
        consumer_group_id=found.group_id,
        max_lag_consumer_id=largest["consumer_id"],
        max_lag_consumer=urls.related("consumer-groups", found.group_id, "consumers", *owner),
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
    for (topic_name, number), (committed, end) in (await admin_of(request).lags(found.group_id)).items():
        if not caller.may_describe(topic_name):
            continue
        member = members.get((topic_name, number))
        rows.append(
            urls.resource(
                "ConsumerLag",
                f"/consumer-group={found.group_id}/lag={topic_name}/partition={number}",
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


_GROUP: Final = f"{CLUSTER}/consumer-groups/{{group}}"
_ENDPOINTS: Final = (
    (f"{CLUSTER}/consumer-groups", groups),
    (_GROUP, group),
    (f"{_GROUP}/consumers", consumers),
    (f"{_GROUP}/consumers/{{consumer}}", consumer),
    (f"{_GROUP}/consumers/{{consumer}}/assignments", assignments),
    (f"{_GROUP}/consumers/{{consumer}}/assignments/{{topic}}/partitions/{{partition:int}}", assignment),
    (f"{_GROUP}/lags", lags),
    (f"{_GROUP}/lags/{{topic}}/partitions/{{partition:int}}", lag),
    (f"{_GROUP}/lag-summary", lag_summary),
)
ROUTES: Final = tuple(Route(path, with_cluster(endpoint)) for path, endpoint in _ENDPOINTS)
