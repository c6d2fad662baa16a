"""DeleteTopics, versions 1 to 6: deletes topics. In version 6 topics may be named by id."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Awaitable
from typing import Any

from kafka.protocol.admin import DeleteTopicsResponse

from headrace.broker.access.permissions import BrokerPermission
from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.topics import NO_TOPIC_ID

BY_ID_FROM = 6


def handle(context: RequestContext, request: Any) -> Awaitable[Any]:
    return _delete(context, request)


async def _delete(context: RequestContext, request: Any) -> Any:
    requested: list[tuple[str | None, uuid.UUID | None]]
    if context.version >= BY_ID_FROM:
        requested = [(state.name, state.topic_id) for state in request.topics or ()]
    else:
        requested = [(name, None) for name in request.topic_names or ()]
    return DeleteTopicsResponse(
        version=context.version,
        responses=[await _result(context, *topic, times) for topic, times in Counter(requested).items()],
    )


async def _result(context: RequestContext, name: str | None, topic_id: uuid.UUID | None, times: int) -> Any:
    code, message = ErrorCode.NONE, None
    try:
        if times > 1:
            requested = str(topic_id) if name is None else repr(name)
            raise RequestRefused(
                ErrorCode.INVALID_REQUEST, f"topic {requested} is in the request {times} times; name it once"
            )
        if name is None:
            topic = context.node.topics.by_id(topic_id or NO_TOPIC_ID)
            if topic is None:
                raise RequestRefused(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with the id {topic_id}")
            refusal = context.topic_error(topic.name, BrokerPermission.ADMIN)
            if refusal:
                # The message omits the topic name, which the client may not be allowed to see.
                raise RequestRefused(refusal, "no line of the users file grants admin on the topic with this id")
        else:
            context.check_topic(name, BrokerPermission.ADMIN)
            topic = context.node.topic(name)
        name, topic_id = topic.name, topic.topic_id
        await context.node.changes.delete_topic(topic)
    except RequestRefused as refused:
        code, message = refused.code, refused.message
    return DeleteTopicsResponse.DeletableTopicResult(
        version=context.version,
        name=name if name is not None or context.version >= BY_ID_FROM else "",
        topic_id=topic_id,
        error_code=code,
        error_message=message,
    )
