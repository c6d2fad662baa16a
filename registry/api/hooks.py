"""Interfaces between the ASGI front, access control and metrics.

The front serves most requests from its cache, so views alone can neither authenticate nor count requests. Authenticator
and observer are arguments of `AsgiFront`. Without them every client has all permissions, and nothing is counted.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from headrace.registry.access.permissions import ALL_PERMISSIONS
from headrace.registry.access.users import Principal as Principal

PRINCIPAL_KEY: Final = "registry.principal"
"""WSGI environ key of the principal. The front sets it if it knows the principal, otherwise the application does."""

CERTIFICATE_KEY: Final = "registry.certificate"
"""ASGI scope and WSGI environ key of the subject of a verified client certificate."""

PREFLIGHT_KEY: Final = "registry.preflight"
"""WSGI environ key of a preflight: a request without its body, to find out whether the request is authorized."""

PREFLIGHT_OK: Final = 204
"""Status of the application's response to an authorized preflight. Any other response, such as that of a public route,
is sent to the client."""

OFFLOAD_KEY: Final = "registry.offload"
"""WSGI environ key of a `ComparisonOffload`, which makes the application defer long comparisons of schemas."""

DEFERRED_KEY: Final = "registry.deferred"
"""WSGI environ key that the application sets to a deferred `Comparison`; its response is then a placeholder."""

UNRESTRICTED: Final = Principal("", ALL_PERMISSIONS)
"""The principal of all clients of a registry without a users file."""


class Authenticator(Protocol):
    """Identifies principals by the `Authorization` header, or without one by the client certificate."""

    def cached_principal(self, authorization: str | None, certificate: str = "") -> Principal | None:
        """The principal, if it is known without waiting. The event loop calls it, so it must not block.

        None sends the request to the application, which authenticates it (a slow hash, or a rejection) and sets
        `PRINCIPAL_KEY`. Only requests of known principals are served from the cache.

        Args:
            authorization: the value of the `Authorization` header; None without the header.
            certificate: the subject of the verified client certificate; "" without one.
        """
        ...


class RequestObserver(Protocol):
    """Observes every response. The event loop calls it, so it must not block."""

    def record(
        self,
        scope: Any,
        route: str,
        status: int,
        size: int,
        seconds: float,
        principal: Principal | None,
        *,
        cached: bool,
    ) -> None:
        """Records a response that was sent.

        Args:
            scope: the ASGI scope of the request.
            route: the matched URL rule, such as `/subjects/<subject:subject>`; "" without a match, and for errors that
                the front returns itself.
            status: the status of the response.
            size: the size of its body, in bytes.
            seconds: time since the headers of the request were read.
            principal: the principal, if known.
            cached: whether the response came from the cache.
        """
        ...


class NoAuthentication:
    """An `Authenticator` that gives every client all permissions."""

    def cached_principal(self, authorization: str | None, certificate: str = "") -> Principal | None:
        return UNRESTRICTED


class NoObserver:
    """A `RequestObserver` that records nothing."""

    def record(self, *_: Any, **__: Any) -> None:
        pass
