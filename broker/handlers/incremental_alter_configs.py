"""IncrementalAlterConfigs, versions 0 and 1, of topics. The broker's own settings come from its settings file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from kafka.protocol.admin import IncrementalAlterConfigsResponse

from headrace.broker.access.rights import Right
from headrace.broker.config import BrokerConfig
from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext
from headrace.broker.handlers.describe_configs import TOPIC
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.topic_config import BY_NAME, ConfigType, check_config
from headrace.broker.topics import Topic
from headrace.broker.turns import Turns

SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
"""Operations; the last two are for lists alone."""


def handle(context: RequestContext, request: Any) -> Any:
    changed = partial(_changed, defaults=context.node.config)
    return altered(context, request, IncrementalAlterConfigsResponse, changed)


async def altered(
    context: RequestContext, request: Any, response: Any, configs_of: Callable[[Any, Topic], dict[str, str]]
) -> Any:
    """Alters topics, each of which is altered or refused by itself; returns the answer.

    Args:
        response: the class of the answer.
        configs_of: what a topic's configuration becomes, of what is wanted of it and the topic; may raise
            `RequestRefused`.
    """
    turns, answers = Turns(), []
    times = Counter((wanted.resource_type, wanted.resource_name) for wanted in request.resources or ())
    for wanted in request.resources or ():
        code, message = ErrorCode.NONE, None
        try:
            if times[wanted.resource_type, wanted.resource_name] > 1:
                raise RequestRefused(ErrorCode.INVALID_REQUEST, "the resource is in the request twice")
            topic = _alterable_topic(context, wanted)
            if request.validate_only:
                configs_of(wanted, topic)
            else:
                await context.node.changes.alter_topic(topic.name, partial(configs_of, wanted))
        except RequestRefused as refused:
            code, message = refused.code, refused.message
        answers.append(
            response.AlterConfigsResourceResponse(
                version=context.version,
                error_code=code,
                error_message=message,
                resource_type=wanted.resource_type,
                resource_name=wanted.resource_name or "",
            )
        )
        await turns.give()
    return response(version=context.version, responses=answers)


def _alterable_topic(context: RequestContext, wanted: Any) -> Topic:
    """The topic whose configuration a request names.

    Raises:
        RequestRefused: it names something else, or a topic that cannot be altered.
    """
    if wanted.resource_type != TOPIC:
        raise RequestRefused(ErrorCode.INVALID_REQUEST, "only topics can be altered while the broker runs")
    context.check_topic(wanted.resource_name or "", Right.ADMIN)
    topic = context.node.topic(wanted.resource_name or "")
    if topic.is_internal:
        raise RequestRefused(ErrorCode.INVALID_REQUEST, f"{topic.name} is the broker's own")
    return topic


def _changed(wanted: Any, topic: Topic, *, defaults: BrokerConfig) -> dict[str, str]:
    configs = dict(topic.configs)
    changes = list(wanted.configs or ())
    if len({change.name for change in changes}) < len(changes):
        raise RequestRefused(ErrorCode.INVALID_REQUEST, "a configuration is in the request twice")
    for change in changes:
        _apply(configs, change, defaults)
    return configs


def _apply(configs: dict[str, str], change: Any, defaults: BrokerConfig) -> None:
    name = change.name or ""
    if change.config_operation == SET:
        configs[name] = check_config(name, change.value)
    elif change.config_operation == DELETE:
        if name not in BY_NAME:
            raise RequestRefused(ErrorCode.INVALID_CONFIG, f"unknown topic configuration {name!r}")
        configs.pop(name, None)
    elif change.config_operation in (APPEND, SUBTRACT):
        configs[name] = check_config(name, _changed_list(configs, change, defaults))
    else:
        raise RequestRefused(ErrorCode.INVALID_REQUEST, f"{name}: there is no operation {change.config_operation}")


def _changed_list(configs: Mapping[str, str], change: Any, defaults: BrokerConfig) -> str:
    """A list with items more, or without some, in the order they had."""
    name = change.name or ""
    row = BY_NAME.get(name)
    if row is None or row.type is not ConfigType.LIST:
        raise RequestRefused(ErrorCode.INVALID_CONFIG, f"{name}: only to lists items are added, and taken from them")
    items = [item for item in configs.get(name, row.default(defaults)).split(",") if item]
    given = [item.strip() for item in (change.value or "").split(",")]
    if change.config_operation == SUBTRACT:
        return ",".join(item for item in items if item not in given)
    return ",".join(dict.fromkeys([*items, *given]))
