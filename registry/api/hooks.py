"""What serving asks of access control and of metrics.

The front answers most requests from its cache, so neither can live in the application's views alone. Both are given
to `create_front`; without them everybody may do everything and nobody counts.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from headrace.registry.access.rights import UNLIMITED
from headrace.registry.access.users import Principal as Principal

PRINCIPAL_KEY: Final = "registry.principal"
"""Where in the WSGI environ the application finds and may set who asks."""

CERTIFICATE_KEY: Final = "registry.certificate"
"""Where in the ASGI scope and the WSGI environ the subject of a client's certificate stands, once it was checked."""

ASKS_KEY: Final = "registry.asks"
"""Set in the WSGI environ of a request whose body has not been received: is it worth receiving?"""

WORTH_RECEIVING: Final = 204
"""The status of the application's answer to that, where it is yes; any other is the request's answer."""

ELSEWHERE_KEY: Final = "registry.elsewhere"
"""Where in the WSGI environ an `Elsewhere` stands when a comparison of schemas that takes long is to be left."""

LEFT_KEY: Final = "registry.left"
"""Where in the environ the application then leaves that `Comparison`; its answer says nothing."""

ANYBODY: Final = Principal("", UNLIMITED)
"""Whoever asks a registry without users. Answers kept for one principal are given to those with an equal `key`."""


class Authenticator(Protocol):
    """Knows principals by their `Authorization` header, None when there is none, else by their certificate."""

    def recall(self, authorization: str | None, certificate: str = "") -> Principal | None:
        """The principal, when that can be told at once; it is called in the event loop and must not wait.

        None sends the request to the application, which authenticates it (a slow hash, a refusal) and sets
        `PRINCIPAL_KEY`; so a principal that is to profit from the cache is recalled from then on.
        """
        ...


class Observer(Protocol):
    """Is told of every answer, in the event loop: it must not wait."""

    def answered(
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
        """One answer has been sent.

        Args:
            scope: the request as ASGI has it.
            route: the rule of the path, such as `/subjects/<subject:subject>`; "" when no rule matched.
            status: of the answer.
            size: of its body, in bytes.
            seconds: since the request's head had been read.
            principal: who asked, when that is known.
            cached: whether the application was not asked.
        """
        ...


class Everybody:
    """No access control."""

    def recall(self, authorization: str | None, certificate: str = "") -> Principal | None:
        return ANYBODY


class Nobody:
    """No metrics."""

    def answered(self, *_: Any, **__: Any) -> None:
        pass
