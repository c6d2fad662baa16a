"""Cross-origin requests (CORS): which web pages may call the registry from a browser.

A browser sends the origin of a page with its requests, and lets the page read a response only if the response names
that origin. Before other requests than those of a form it sends a preflight, without credentials. A POST without
`Content-Type` needs none, so the front rejects it unless the origin is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from headrace.registry.api.response_cache import AppResponse

EVERY_ORIGIN: Final = b"*"
METHODS: Final = b"GET, HEAD, POST, PUT, DELETE"
EXPOSED_HEADERS: Final = b"Retry-After, X-Request-ID"
PREFLIGHT_CACHED_S: Final = 1800  # how long a browser may reuse a preflight; the value of Jetty's filter

_ORIGIN: Final = re.compile(rb"[a-z][a-z0-9+.-]*://[a-z0-9.:\[\]_-]+")
_HEADER_NAMES: Final = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,1024}")

Headers = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class CrossOriginPolicy:
    """The origins of the pages that may call the registry; `*` allows every page.

    Pages of a listed origin may also use credentials that the browser stores, such as a client certificate. With `*`
    browsers never send these; a page must set `Authorization` itself.
    """

    origins: frozenset[bytes]

    @classmethod
    def of(cls, origins: Iterable[str]) -> CrossOriginPolicy | None:
        """Returns the policy for a setting, None if it lists no origin.

        Raises:
            ValueError: an entry is not an origin.
        """
        policy = cls(frozenset(origin.lower().encode() for origin in origins))
        for name in sorted(policy.origins):
            if name != EVERY_ORIGIN and _ORIGIN.fullmatch(name) is None:
                raise ValueError(
                    f"{name.decode()} is not an origin; write scheme://host or scheme://host:port without a path, or *"
                )
        if policy._allows_every_origin and len(policy.origins) > 1:
            raise ValueError("* allows every origin; remove the others, or list all origins without *")
        return policy if policy.origins else None

    def allows(self, origin: bytes) -> bool:
        return self._allows_every_origin or origin in self.origins

    @property
    def _allows_every_origin(self) -> bool:
        return EVERY_ORIGIN in self.origins

    def headers(self, origin: bytes | None) -> Headers:
        """The headers that a response to a request from this origin has in addition.

        Args:
            origin: the header `Origin` of the request; None without one.
        """
        if self._allows_every_origin:
            allowed: Headers = ((b"access-control-allow-origin", b"*"),)
        elif origin in self.origins:
            allowed = (
                (b"vary", b"Origin"),
                (b"access-control-allow-origin", origin or b""),
                (b"access-control-allow-credentials", b"true"),
            )
        else:
            return ((b"vary", b"Origin"),)
        return (*allowed, (b"access-control-expose-headers", EXPOSED_HEADERS))

    def preflight(self, scope: Any, origin: bytes | None) -> AppResponse | None:
        """The response to a preflight, which has no credentials; None if the request is none, or its origin is not
        allowed.

        Args:
            scope: the ASGI scope of the request.
            origin: its header `Origin`; None without one.
        """
        if scope["method"] != "OPTIONS" or origin is None or not self.allows(origin):
            return None
        found = dict(scope["headers"])
        if b"access-control-request-method" not in found:
            return None
        wanted = found.get(b"access-control-request-headers", b"")
        headers: Headers = (
            (b"access-control-allow-methods", METHODS),
            (b"access-control-max-age", b"%d" % PREFLIGHT_CACHED_S),
            *(((b"access-control-allow-headers", wanted),) if _HEADER_NAMES.fullmatch(wanted) else ()),
        )
        return AppResponse(204, headers, b"")
