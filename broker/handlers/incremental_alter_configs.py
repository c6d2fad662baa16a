"""IncrementalAlterConfigs, versions 0 and 1, for topics: changes single values of a configuration. Requests cannot
change the broker's own configuration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from operator import itemgetter
from typing import Any

from kafka.protocol.admin import IncrementalAlterConfigsResponse

from headrace.broker.access.permissions import BrokerPermission
from headrace.broker.config import BrokerConfig
from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext
from headrace.broker.handlers.describe_configs import TOPIC
from headrace.broker.loop_yielder import LoopYielder
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.topic_config import BY_NAME, ConfigType, check_config
from headrace.broker.topics import Topic

SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
"""Kafka's numbers of the changes to a value; the last two apply to lists only."""


def handle(context: RequestContext, request: Any) -> Any:
    changed = partial(_changed_configs, defaults=context.node.config)
    return alter_topics(context, request, IncrementalAlterConfigsResponse, changed)


async def alter_topics(
    context: RequestContext, request: Any, response: Any, configs_of: Callable[[Any, Topic], dict[str, str]]
) -> Any:
    """Changes the configurations of the topics in an AlterConfigs or IncrementalAlterConfigs request, one by one, and
    returns the response. A refused topic does not affect the next ones.

    Args:
        response: the response class.
        configs_of: called with an entry of the request and the topic that it names; returns the topic's new
            configuration, or raises `RequestRefused`.
    """
    yielder, results = LoopYielder(), []
    times = Counter((requested.resource_type, requested.resource_name) for requested in request.resources or ())
    for requested in request.resources or ():
        code, message = ErrorCode.NONE, None
        try:
            if times[requested.resource_type, requested.resource_name] > 1:
                raise RequestRefused(
                    ErrorCode.INVALID_REQUEST,
                    f"resource {requested.resource_name!r} is in the request twice; name it once",
                )
            topic = _checked_topic(context, requested)
            if request.validate_only:
                configs_of(requested, topic)
            else:
                await context.node.changes.alter_topic(topic.name, partial(configs_of, requested))
        except RequestRefused as refused:
            code, message = refused.code, refused.message
        results.append(
            response.AlterConfigsResourceResponse(
                version=context.version,
                error_code=code,
                error_message=message,
                resource_type=requested.resource_type,
                resource_name=requested.resource_name or "",
            )
        )
        await yielder.yield_if_due()
    return response(version=context.version, responses=results)


def _checked_topic(context: RequestContext, requested: Any) -> Topic:
    """Returns the topic that an entry of an AlterConfigs or IncrementalAlterConfigs request names.

    Raises:
        RequestRefused: the resource is not a topic, the topic does not exist or is internal, or the client may not
            alter it.
    """
    if requested.resource_type != TOPIC:
        raise RequestRefused(
            ErrorCode.INVALID_REQUEST,
            "only configurations of topics can be altered; change the broker's configuration in its settings file and "
            "restart it",
        )
    context.check_topic(requested.resource_name or "", BrokerPermission.ADMIN)
    topic = context.node.topic(requested.resource_name or "")
    if topic.is_internal:
        raise RequestRefused(
            ErrorCode.INVALID_REQUEST, f"{topic.name} is an internal topic; its configuration is fixed"
        )
    return topic


def _changed_configs(requested: Any, topic: Topic, *, defaults: BrokerConfig) -> dict[str, str]:
    configs = dict(topic.configs)
    changes = list(requested.configs or ())
    name, times = max(Counter(change.name for change in changes).items(), key=itemgetter(1), default=("", 0))
    if times > 1:
        raise RequestRefused(
            ErrorCode.INVALID_REQUEST, f"configuration key {name!r} is in the request {times} times; name it once"
        )
    for change in changes:
        _apply(configs, change, defaults)
    return configs


def _apply(configs: dict[str, str], change: Any, defaults: BrokerConfig) -> None:
    name = change.name or ""
    if change.config_operation == SET:
        configs[name] = check_config(name, change.value)
    elif change.config_operation == DELETE:
        if name not in BY_NAME:
            raise RequestRefused(
                ErrorCode.INVALID_CONFIG, f"unknown topic configuration {name!r}; known: {', '.join(BY_NAME)}"
            )
        configs.pop(name, None)
    elif change.config_operation in (APPEND, SUBTRACT):
        configs[name] = check_config(name, _changed_list(configs, change, defaults))
    else:
        raise RequestRefused(
            ErrorCode.INVALID_REQUEST,
            f"{name}: operation {change.config_operation} does not exist; "
            "use 0 (set), 1 (delete), 2 (append) or 3 (subtract)",
        )


def _changed_list(configs: Mapping[str, str], change: Any, defaults: BrokerConfig) -> str:
    """Returns the new value of a topic's configuration key that is a list, with items appended or removed; the order of
    the remaining items is unchanged. An item that the list already contains is not appended again.

    Args:
        configs: the topic's configuration before the change.
        change: an APPEND or SUBTRACT entry of the request.
        defaults: the broker's configuration, which gives the value of a key that the topic does not set.

    Raises:
        RequestRefused: the key is unknown, or its value is not a list.
    """
    name = change.name or ""
    row = BY_NAME.get(name)
    if row is None or row.type is not ConfigType.LIST:
        raise RequestRefused(ErrorCode.INVALID_CONFIG, f"{name} is not a list; append and subtract apply to lists only")
    items = [item for item in configs.get(name, row.default(defaults)).split(",") if item]
    items_given = [item.strip() for item in (change.value or "").split(",")]
    if change.config_operation == SUBTRACT:
        return ",".join(item for item in items if item not in items_given)
    return ",".join(dict.fromkeys([*items, *items_given]))
