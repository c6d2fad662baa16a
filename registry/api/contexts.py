"""/contexts: which there are, and deleting an empty one. What is done in them is in `registry.api.app`."""

from __future__ import annotations

from flask import Blueprint, Response, request

from headrace.registry.api.answers import answer, page
from headrace.registry.api.changes import note_change
from headrace.registry.api.problems import BadRequest
from headrace.registry.api.services import services
from headrace.registry.errors import InvalidSubject
from headrace.registry.names import context_name

blueprint = Blueprint("contexts", __name__)


@blueprint.get("/contexts")
def list_contexts() -> Response:
    return answer(page(services().lookup.contexts(prefix=request.args.get("contextPrefix", ""))))


@blueprint.delete("/contexts/<segment:context>")
def delete_context(context: str) -> Response:
    name = _context(context)
    if services().deletion.delete_context(name):
        note_change("context_deleted", context=name)
    return Response(status=204)


@blueprint.get("/contexts/<segment:context>")
def get_context(context: str) -> Response:
    """The root of the API in a context, which is as empty as the root."""
    _context(context)
    return answer({})


@blueprint.route("/contexts/<segment:context>/<path:_rest>", methods=["GET", "POST", "PUT", "DELETE"])
def call_in_no_context(context: str, _rest: str) -> Response:
    """What is left of calls in a context when they have been rewritten: those whose context can be none."""
    _context(context)
    raise BadRequest(404, "HTTP 404 Not Found")


def _context(text: str) -> str:
    try:
        return context_name(text)
    except InvalidSubject:
        raise BadRequest(
            400, f"The context '{text}' is not valid: its name has a colon or a control character"
        ) from None
