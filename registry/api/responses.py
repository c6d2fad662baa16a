"""Responses: content negotiation, and JSON in the format of the Confluent registry."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any, Final

from flask import Response, g, request

PRODUCED: Final = (
    ("application/vnd.schemaregistry.v1+json", 1.0),
    ("application/vnd.schemaregistry+json", 0.9),
    ("application/json", 0.5),
)
"""The content types of responses, with the server's preference for each."""

ACCEPT_CACHE_SIZE: Final = 256  # parsed values of `Accept`; most clients always send the same value

# A quoted parameter may contain separators. An unterminated one extends to the end of the header.
_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"?')
_WEIGHT: Final = re.compile(r"\d+\.?\d*|\.\d+", re.ASCII)


def content_type() -> str | None:
    """The content type of the response to the current request; None when the client accepts none of the types in
    `PRODUCED`."""
    return negotiate_content_type(request.headers.get("Accept", ""))


@lru_cache(ACCEPT_CACHE_SIZE)
def negotiate_content_type(accept: str) -> str | None:
    """The best of the content types in `PRODUCED` for a header `Accept`; None when the client accepts none of them.

    Parses like JAX-RS rather than RFC 9110, because Java's HTTP client up to 17.0.3 sends
    `text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2`. Parameters other than the weight are ignored, `*` means
    `*/*`, and a weight may begin with its dot. A range with an invalid weight is ignored.
    """
    items = [item for item in _QUOTED.sub("", accept).lower().split(",") if item.strip()]
    if not items:
        return PRODUCED[0][0]
    ranges = [found for found in map(_media_range, items) if found is not None]
    name, quality = max(((name, weight * _quality(name, ranges)) for name, weight in PRODUCED), key=lambda row: row[1])
    return name if quality > 0 else None


def _media_range(item: str) -> tuple[str, str, float] | None:
    """(type, subtype, weight) of an item of the header `Accept`; None for an invalid item."""
    name, *parameters = (part.strip() for part in item.split(";"))
    kind, slash, subkind = name.partition("/")
    if not (slash or kind == "*"):
        return None
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip() == "q":
            number = _WEIGHT.fullmatch(value.strip())
            return None if number is None else (kind, subkind, min(float(number[0]), 1.0))
    return kind, subkind, 1.0


def _quality(name: str, ranges: list[tuple[str, str, float]]) -> float:
    """The weight of a content type in a header `Accept`: that of the most specific range that matches it, or 0 without
    one.

    Args:
        name: the content type.
        ranges: (type, subtype, weight) of each item of the header.
    """
    kind, _, subkind = name.partition("/")
    best, quality = -1, 0.0
    for range_kind, range_subkind, weight in ranges:
        if range_kind == "*":
            specificity = 0
        elif range_kind == kind and range_subkind in ("*", subkind):
            specificity = 2 if range_subkind == subkind else 1
        else:
            continue
        if (specificity, weight) > (best, quality):
            best, quality = specificity, weight
    return quality


def json_response(value: Any, status: int = 200) -> Response:
    """A response with a value as JSON and an HTTP status."""
    return bytes_response(to_json(value), status)


def error_response(status: int, error_code: int, message: str) -> Response:
    """An error response in the JSON format that all clients of the API parse.

    Args:
        status: the HTTP status.
        error_code: the more precise number in the body, such as 40401, or the status again.
        message: the text in the body.
    """
    return json_response({"error_code": error_code, "message": message}, status)


def bytes_response(body: bytes, status: int = 200) -> Response:
    response = Response(body, status)
    # Set after construction: Flask would add a charset, which clients of the API do not expect.
    response.headers["Content-Type"] = content_type() or "application/json"
    return response


def disable_caching() -> None:
    """Excludes the response to the current request from the cache."""
    g.is_uncacheable = True


def to_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def paginate(items: list[Any], limit_max: int | None = None) -> list[Any]:
    """Returns the part of a list that the parameters `offset` and `limit` of the current request's query select. A
    `limit` of 0 or less, or above `limit_max`, counts as `limit_max`; if `limit_max` is None, it counts as no limit."""
    offset = max(0, query_integer("offset", 0))
    limit = query_integer("limit", -1)
    if limit <= 0 or (limit_max is not None and limit > limit_max):
        limit = len(items) if limit_max is None else limit_max
    return items[offset : offset + limit]


def query_flag(*names: str) -> bool:
    """Whether a query parameter, by any of its names, is "true" in any case. Other values mean false."""
    return any(request.args.get(name, "").lower() == "true" for name in names)


def query_integer(name: str, default: int) -> int:
    text = request.args.get(name, "")
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) <= 10 else default
