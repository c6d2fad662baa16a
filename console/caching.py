"""Responses for pages that did not change since a browser loaded them."""

from __future__ import annotations

import hashlib
from typing import Any

from flask import Response, g, request

from headrace.console.context import console
from headrace.console.sources import Reading

MINUTE_MS = 60_000


def unchanged(*readings: Reading[Any], variant: str = "") -> Response | None:
    """Returns the response 304 if the browser has this page with equal readings. Otherwise the page's response gets
    a tag for the next request.

    A page also depends on its URL, the viewer, the theme, the version, and the minute: it shows ages.

    Args:
        readings: of revisions, or of cached values, which equal each other if they were read at the same time.
        variant: further content that the page depends on.
    """
    if not all(one.is_known for one in readings):
        return None
    viewer = g.viewer.principal
    parts = [request.url, viewer.name, viewer.key, repr(viewer.payload), request.headers.get("Cookie", "")]
    parts += [console().version, str(console().now_ms() // MINUTE_MS), variant]
    parts += [str(one.value) if isinstance(one.value, int) else str(one.read_at_ms) for one in readings]
    tag = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]
    g.page_tag = tag
    if request.if_none_match.contains_weak(tag):
        response = Response(status=304)
        response.set_etag(tag, weak=True)
        return response
    return None
