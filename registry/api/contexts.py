"""/contexts: lists contexts and deletes empty ones. `registry.api.app` rewrites other requests in a context.

/scopes: lists the contexts and subjects that have a configuration or mode of their own. `GET /contexts` has only
contexts that have had a subject, as in the Confluent registry, so an export of all settings needs this list.
"""

from __future__ import annotations

from flask import Blueprint, Response, request

from headrace.registry.api.changes import record_change
from headrace.registry.api.problems import BadRequest
from headrace.registry.api.responses import json_response, paginate
from headrace.registry.api.services import services
from headrace.registry.errors import InvalidSubject
from headrace.registry.names import DEFAULT_CONTEXT, NAME_BYTES_MAX, context_name, context_scope

blueprint = Blueprint("contexts", __name__)


@blueprint.get("/contexts")
def list_contexts() -> Response:
    return json_response(paginate(services().lookup.contexts(prefix=request.args.get("contextPrefix", ""))))


@blueprint.get("/scopes")
def list_scopes() -> Response:
    scopes = services().lookup.scopes()
    return json_response(paginate([f":{DEFAULT_CONTEXT}:" if scope is None else scope for scope in scopes]))


@blueprint.delete("/contexts/<segment:context>")
def delete_context(context: str) -> Response:
    name = _context(context)
    if services().deletion.delete_context(name):
        record_change("context_deleted", context_scope(name))
    return Response(status=204)


@blueprint.get("/contexts/<segment:context>")
def get_context(context: str) -> Response:
    """`GET /contexts/{context}`: an empty object, like the root of the API."""
    _context(context)
    return json_response({})


@blueprint.route("/contexts/<segment:context>/<path:_rest>", methods=["GET", "POST", "PUT", "DELETE"])
def reject_invalid_context(context: str, _rest: str) -> Response:
    """Rejects requests to `/contexts/{context}/…` with an invalid name of the context; `_rest`, the rest of the path,
    is not used. `registry.api.app` rewrites requests with a valid name. Only paths with `/contexts/` twice come here
    with one; they give 404."""
    _context(context)
    raise BadRequest(404, "HTTP 404 Not Found")


def _context(text: str) -> str:
    try:
        return context_name(text)
    except InvalidSubject:
        raise BadRequest(
            400,
            f"The context '{text}' is not valid: its name has a colon, a control character or more than "
            f"{NAME_BYTES_MAX} bytes",
        ) from None
