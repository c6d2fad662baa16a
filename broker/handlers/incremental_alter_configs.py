"""IncrementalAlterConfigs, versions 0 and 1, of topics. The broker's own settings come from its settings file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kafka.protocol.admin import IncrementalAlterConfigsResponse

from headrace.broker.access.rights import Right
from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext
from headrace.broker.handlers.describe_configs import TOPIC
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.topic_config import BY_NAME, check_config
from headrace.broker.topics import Topic

SET, DELETE = 0, 1
"""Operations; 2 and 3 append to and take from lists, which no configuration here has more than one item of."""


def handle(context: RequestContext, request: Any) -> Any:
    return altered(context, request, IncrementalAlterConfigsResponse, _changed)


def altered(
    context: RequestContext, request: Any, response: Any, configs_of: Callable[[Topic, Any], dict[str, str]]
) -> Any:
    """The answer to a request that alters topics, each of which is altered or refused by itself.

    Args:
        response: the class of the answer.
        configs_of: what a topic's configuration becomes, of the topic and what is wanted of it; may raise
            `RequestRefused`.
    """
    answers = []
    for wanted in request.resources or ():
        code, message = ErrorCode.NONE, None
        try:
            topic = _alterable_topic(context, wanted)
            configs = configs_of(topic, wanted)
            if not request.validate_only:
                context.node.alter_topic(topic, configs)
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


def _changed(topic: Topic, wanted: Any) -> dict[str, str]:
    configs = dict(topic.configs)
    for change in wanted.configs or ():
        _apply(configs, change)
    return configs


def _apply(configs: dict[str, str], change: Any) -> None:
    name = change.name or ""
    if change.config_operation == SET:
        configs[name] = check_config(name, change.value)
    elif change.config_operation == DELETE:
        if name not in BY_NAME:
            raise RequestRefused(ErrorCode.INVALID_CONFIG, f"unknown topic configuration {name!r}")
        configs.pop(name, None)
    else:
        raise RequestRefused(ErrorCode.INVALID_REQUEST, f"{name}: only set and delete are done here")
