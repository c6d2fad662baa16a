"""AlterConfigs, versions 0 to 2, of topics: what is not given goes back to its default.

Newer clients alter single values with IncrementalAlterConfigs; kafkajs knows only this one.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin import AlterConfigsResponse

from headrace.broker.handlers.context import RequestContext
from headrace.broker.handlers.incremental_alter_configs import altered
from headrace.broker.topic_config import check_config
from headrace.broker.topics import Topic


def handle(context: RequestContext, request: Any) -> Any:
    return altered(context, request, AlterConfigsResponse, _given)


def _given(wanted: Any, topic: Topic) -> dict[str, str]:
    return {each.name or "": check_config(each.name or "", each.value) for each in wanted.configs or ()}
