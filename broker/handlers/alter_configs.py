"""AlterConfigs, versions 0 to 2, for topics: replaces a topic's configuration. A key that the request omits returns to
its default.

Newer clients use IncrementalAlterConfigs, which changes single values; kafkajs supports only AlterConfigs.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin import AlterConfigsResponse

from headrace.broker.handlers.context import RequestContext
from headrace.broker.handlers.incremental_alter_configs import alter_topics
from headrace.broker.topic_config import check_config
from headrace.broker.topics import Topic


def handle(context: RequestContext, request: Any) -> Any:
    return alter_topics(context, request, AlterConfigsResponse, _configs_given)


def _configs_given(requested: Any, topic: Topic) -> dict[str, str]:
    return {each.name or "": check_config(each.name or "", each.value) for each in requested.configs or ()}
