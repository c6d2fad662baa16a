"""The actions of S3's authorization that requests require ("Actions, resources, and condition keys for Amazon S3"), and
a policy that allows some of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qs, unquote

LIST, GET, PUT, DELETE, ABORT = (
    f"s3:{name}" for name in ("ListBucket", "GetObject", "PutObject", "DeleteObject", "AbortMultipartUpload")
)
PLAIN_QUERY: Final = frozenset(("list-type", "prefix", "delimiter", "max-keys", "continuation-token", "start-after"))
UPLOAD_QUERY: Final = frozenset(("partNumber", "uploadId", "uploads", "x-id"))


def required(request: dict[str, Any]) -> frozenset[tuple[str, str]]:
    """Returns the actions that a request in path style requires, each with the key or prefix to which it applies.

    A request that this module does not know requires an action with the name of its method and query, which no policy
    allows.
    """
    method, path = request["REQUEST_METHOD"], unquote(request["PATH_INFO"])
    query = parse_qs(request.get("QUERY_STRING", ""), keep_blank_values=True)
    key = path.lstrip("/").partition("/")[2]
    unknown = frozenset({(f"{method} ?{'&'.join(sorted(query))}", key)})
    if not key:
        if method == "POST" and set(query) == {"delete"}:
            return frozenset({(DELETE, "")})  # the keys are in the body
        if method in ("GET", "HEAD") and not set(query) - {*PLAIN_QUERY, "encoding-type", "fetch-owner"}:
            return frozenset({(LIST, "".join(query.get("prefix", ())))})
        return unknown
    if set(query) - UPLOAD_QUERY:
        return unknown
    if method == "DELETE":
        return frozenset({(ABORT if "uploadId" in query else DELETE, key)})
    if method in ("GET", "HEAD") and "uploadId" not in query:
        return frozenset({(GET, key)})
    if method in ("PUT", "POST"):
        source = unquote(request.get("HTTP_X_AMZ_COPY_SOURCE", "")).lstrip("/").partition("/")[2]
        return frozenset({(PUT, key), *([(GET, source)] if source else [])})
    return unknown


@dataclass
class S3Policy:
    """A policy that allows actions on the keys below a prefix.

    Attributes:
        used: the allowed actions that requests have used.
        denied: the other actions that requests required, with their keys.
    """

    prefix: str
    allowed: frozenset[str]
    used: set[str] = field(default_factory=set)
    denied: set[tuple[str, str]] = field(default_factory=set)

    def __call__(self, request: dict[str, Any]) -> str:
        """Returns the fault of a request: "denied", or "" if all of its actions are allowed."""
        actions = required(request)
        denied = {(action, key) for action, key in actions if action not in self.allowed or not self._is_below(key)}
        self.used |= {action for action, _ in actions - denied}
        self.denied |= denied
        return "denied" if denied else ""

    def _is_below(self, key: str) -> bool:
        return not key or f"{key.rstrip('/')}/".startswith(f"{self.prefix}/")
