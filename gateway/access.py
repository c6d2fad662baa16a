"""Permissions of clients, from the file `registry.users`.

| request | required permission |
|---|---|
| produce to a topic | `write` on the subject of the topic's values |
| register a schema under another subject | `write` on that subject |
| use a schema of another subject | `read` on that subject |
| consume a topic | `payload` on the topic |
| read names, partitions, offsets and configurations | `read` on the subject of the topic's values |
| create, change and delete a topic | `admin` on the subject of the topic's values |
| read brokers, groups and metrics | `read` on any subject |

Without `registry.users` every client has all permissions, as in the registry and the console.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request

from headrace.gateway.errors import GatewayError, Kind
from headrace.gateway.schemas import SchemaChoice
from headrace.registry.access.authenticator import RegistryUsersFile
from headrace.registry.access.permissions import ALL_PERMISSIONS, WILDCARD, Permission, SubjectPattern, Target
from headrace.registry.access.users import Principal
from headrace.settings import LoaderSettings

CALLER_KEY: Final = "headrace.caller"
"""Key of the caller in the ASGI scope."""
AUTHENTICATION_THREADS: Final = 8
RETRY_AFTER_S: Final = 1

_EVERYONE: Final = Principal("", ALL_PERMISSIONS, payload=(SubjectPattern.parse(WILDCARD),))


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request.

    Attributes:
        principal: the user with its permissions; of an anonymous client without a name.
        address: the IP address.
        loader: the loader's settings, which name the subject of each topic.
    """

    principal: Principal
    address: str
    loader: LoaderSettings

    @property
    def key(self) -> str:
        """The key of limits per client: the user, or without one the IP address."""
        return f"user {self.principal.name}" if self.principal.name else f"address {self.address}"

    def require_produce(self, topic: str) -> None:
        """Raises:
        GatewayError: the caller may not write to the topic.
        """
        self._require_on_topic(Permission.WRITE, topic)

    def require_consume(self, topic: str) -> None:
        """Raises:
        GatewayError: the caller may not read the topic's messages.
        """
        if not self.principal.may_read_payload(topic):
            raise self._denial("payload", f"topic {topic}")

    def require_describe(self, topic: str) -> None:
        """Raises:
        GatewayError: the caller may not see the topic.
        """
        self._require_on_topic(Permission.READ, topic)

    def require_administer(self, topic: str) -> None:
        """Raises:
        GatewayError: the caller may not create, change or delete the topic.
        """
        self._require_on_topic(Permission.ADMIN, topic)

    def require_any(self) -> None:
        """Raises:
        GatewayError: the caller has no permission at all.
        """
        if self.principal.permissions.highest_anywhere is None:
            raise self._denial("read", "any subject")

    def require_schema(self, topic: str, choice: SchemaChoice | None) -> None:
        """Raises:
        GatewayError: the caller may not use the schema that a request to produce to the topic names.
        """
        if choice is None or choice.subject == self.loader.subject_of(topic):
            return  # `require_produce` has checked this subject
        permission = Permission.READ if choice.text is None else Permission.WRITE
        self._require(permission, choice.subject)

    def may_describe(self, topic: str) -> bool:
        """Whether lists of topics contain the topic."""
        target = Target.of_subject(self.loader.subject_of(topic))
        return self.principal.permissions.allow(Permission.READ, target)

    def _require_on_topic(self, permission: Permission, topic: str) -> None:
        self._require(permission, self.loader.subject_of(topic))

    def _require(self, permission: Permission, subject: str) -> None:
        target = Target.of_subject(subject)
        if not self.principal.permissions.allow(permission, target):
            raise self._denial(str(permission), str(target))

    def _denial(self, permission: str, resource: str) -> GatewayError:
        if not self.principal.name:
            return GatewayError(
                Kind.NOT_AUTHENTICATED, f"anonymous clients have no permission {permission} on {resource}; send a user"
            )
        return GatewayError(
            Kind.NOT_AUTHORIZED,
            f"user {self.principal.name} has no permission {permission} on {resource}; add a grant to registry.users",
        )


class GatewayAccess:
    """Finds the caller of each request."""

    def __init__(self, users: RegistryUsersFile | None, loader: LoaderSettings) -> None:
        self._users = users
        self._loader = loader
        self._threads = ThreadPoolExecutor(AUTHENTICATION_THREADS, "headrace-gateway-passwords")

    async def caller(self, scope: Any) -> Caller:
        """Returns the caller of the request with an ASGI scope.

        Raises:
            GatewayError: the credentials are wrong, or cannot be checked now.
        """
        address = str((scope.get("client") or ("",))[0])
        if self._users is None:
            return Caller(_EVERYONE, address, self._loader)
        header = next((value for name, value in scope["headers"] if name == b"authorization"), None)
        authorization = None if header is None else header.decode("latin-1")
        principal = self._users.cached_principal(authorization)
        if principal is None:
            principal = await self._authenticate(self._users, authorization, address)
        return Caller(principal, address, self._loader)

    async def _authenticate(self, users: RegistryUsersFile, authorization: str | None, address: str) -> Principal:
        loop = asyncio.get_running_loop()
        result = await loop.run_in_executor(self._threads, users.authenticate, authorization, address)
        if isinstance(result, Principal):
            return result
        if result.status == 429:
            raise GatewayError(Kind.TOO_MANY_REQUESTS, result.message, retry_after_s=RETRY_AFTER_S)
        raise GatewayError(Kind.NOT_AUTHENTICATED, result.message)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def caller_of(request: Request) -> Caller:
    """Returns the sender of a request."""
    caller = request.scope[CALLER_KEY]
    assert isinstance(caller, Caller)
    return caller
