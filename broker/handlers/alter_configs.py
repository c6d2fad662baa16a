"""AlterConfigs, versions 0 to 2, for topics: replaces a topic's configuration; values not in the request return to
their default.

Newer clients change single values with IncrementalAlterConfigs; kafkajs supports only this API.
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
