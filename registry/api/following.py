"""/follow: what those ask who hold the same as this registry in another place."""

from __future__ import annotations

from flask import Blueprint, Response

from headrace.registry.api.answers import answer
from headrace.registry.api.payloads import FollowPayload, read_body
from headrace.registry.api.services import services
from headrace.registry.following.feed import Question, answer_to, told_json

blueprint = Blueprint("following", __name__)


@blueprint.post("/follow")
def tell() -> Response:
    question = read_body(FollowPayload, Question)
    return answer(told_json(services().database.read(lambda repository: answer_to(question, repository))))
