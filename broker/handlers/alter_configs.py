"""AlterConfigs, versions 0 to 2, of topics: what is not given goes back to its default.

Newer clients alter single values with IncrementalAlterConfigs; kafkajs knows only this one.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin import AlterConfigsResponse

from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext
from headrace.broker.handlers.incremental_alter_configs import alterable_topic
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.topic_config import check_config


def handle(context: RequestContext, request: Any) -> Any:
    return AlterConfigsResponse(
        version=context.version,
        responses=[_one(context, wanted, bool(request.validate_only)) for wanted in request.resources or ()],
    )


def _one(context: RequestContext, wanted: Any, validate_only: bool) -> Any:
    code, message = ErrorCode.NONE, None
    try:
        topic = alterable_topic(context, wanted)
        configs = {each.name or "": check_config(each.name or "", each.value) for each in wanted.configs or ()}
        if not validate_only:
            context.node.alter_topic(topic, configs)
    except RequestRefused as refused:
        code, message = refused.code, refused.message
    return AlterConfigsResponse.AlterConfigsResourceResponse(
        version=context.version,
        error_code=code,
        error_message=message,
        resource_type=wanted.resource_type,
        resource_name=wanted.resource_name or "",
    )
