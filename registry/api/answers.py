"""Responses: which content type a client accepts, and JSON as the Confluent registry writes it."""

from __future__ import annotations

import json
from typing import Any, Final

from flask import Response, request

PRODUCED: Final = (
    ("application/vnd.schemaregistry.v1+json", 1.0),
    ("application/vnd.schemaregistry+json", 0.9),
    ("application/json", 0.5),
)
"""The content types of responses with the server's own preference for each."""


def content_type() -> str | None:
    """What the client accepts best and the server likes best; None when nothing fits."""
    accepted = request.accept_mimetypes
    if not accepted:
        return PRODUCED[0][0]
    name, quality = max(((name, weight * accepted[name]) for name, weight in PRODUCED), key=lambda row: row[1])
    return name if quality > 0 else None


def answer(value: Any, status: int = 200) -> Response:
    """A JSON response."""
    return answer_bytes(to_json(value), status)


def answer_bytes(body: bytes, status: int = 200) -> Response:
    response = Response(body, status)
    # Set afterwards, since Flask would add a charset, which the API's clients do not expect.
    response.headers["Content-Type"] = content_type() or "application/json"
    return response


def to_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def page(items: list[Any], limit_max: int | None = None) -> list[Any]:
    """The part of a list that `offset` and `limit` of the query choose; a limit out of bounds is no limit."""
    offset = max(0, query_integer("offset", 0))
    limit = query_integer("limit", -1)
    if limit <= 0 or (limit_max is not None and limit > limit_max):
        limit = len(items) if limit_max is None else limit_max
    return items[offset : offset + limit]


def query_flag(*names: str) -> bool:
    """Whether a query parameter, by any of its names, says true in any case; all other texts mean false."""
    return any(request.args.get(name, "").lower() == "true" for name in names)


def query_integer(name: str, default: int) -> int:
    text = request.args.get(name, "")
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) <= 10 else default
