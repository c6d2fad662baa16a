"""Permissions of a user on topics, groups and transactional ids, granted by name patterns. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headrace.broker.errors import RequestRefused
from headrace.broker.protocol.error_codes import ErrorCode

WILDCARD: Final = "*"
CACHED_RESOURCES_MAX: Final = 10_000
"""Size of a user's cache of permissions by resource; a full cache is cleared."""


class BrokerPermission(StrEnum):
    """The permissions that a users file can grant. `read` and `write` do not include each other; `admin` includes
    both."""

    READ = "read"  # topic: fetch records; group: join, read and commit offsets
    WRITE = "write"  # topic: produce, auto-create by a metadata request; transactional id: use it
    ADMIN = "admin"  # create, alter, delete


class ResourceType(StrEnum):
    TOPIC = "topic"
    GROUP = "group"
    TRANSACTION = "transaction"  # a transactional id


_AUTHORIZATION_FAILED_CODES: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTION: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


@dataclass(frozen=True, slots=True)
class Grant:
    """One line of the users file: a permission on all resources of one type with a name that matches a pattern.

    `resource_type` None stands for `*`: every topic, group and transactional id and, with `admin`, the broker itself.
    """

    permission: BrokerPermission
    resource_type: ResourceType | None
    name: re.Pattern[str]

    @classmethod
    def parse(cls, permission: str, resource: str) -> Grant:
        """Parses the two words of a grant, for example `read` and `topic:shop.*`.

        Raises:
            ValueError: the permission or the resource is invalid.
        """
        if permission not in list(BrokerPermission):
            raise ValueError(f"{permission} is not a permission; use one of {', '.join(BrokerPermission)}")
        if resource == WILDCARD:
            return cls(BrokerPermission(permission), None, re.compile(".*", re.DOTALL))
        resource_type, colon, pattern = resource.partition(":")
        if resource_type not in list(ResourceType) or not colon or not pattern:
            raise ValueError(
                f"{resource} is not a resource; use topic:PATTERN, group:PATTERN, transaction:PATTERN or *"
            )
        if resource_type == ResourceType.GROUP and permission == BrokerPermission.WRITE:
            raise ValueError("the permission write does not apply to groups; grant read to group members")
        if resource_type == ResourceType.TRANSACTION and permission == BrokerPermission.READ:
            raise ValueError("the permission read does not apply to transactional ids; grant write to their producers")
        parts = (re.escape(part) for part in pattern.split(WILDCARD))
        return cls(BrokerPermission(permission), ResourceType(resource_type), re.compile(".*".join(parts), re.DOTALL))

    def covers(self, resource_type: ResourceType, name: str) -> bool:
        return self.resource_type in (None, resource_type) and self.name.fullmatch(name) is not None


class BrokerPermissions:
    """The permissions of one user, from all grants to the user and to `*` (every user)."""

    __slots__ = ("_cached", "grants")

    def __init__(self, grants: Iterable[Grant] = ()) -> None:
        self.grants = tuple(grants)
        self._cached: dict[tuple[ResourceType, str], frozenset[BrokerPermission]] = {}

    def granted_on(self, resource_type: ResourceType, name: str) -> frozenset[BrokerPermission]:
        """Returns all permissions that the user has on the topic, group or transactional id (`resource_type`) of this
        name."""
        cached = self._cached.get((resource_type, name))
        if cached is None:
            granted = {grant.permission for grant in self.grants if grant.covers(resource_type, name)}
            cached = frozenset(BrokerPermission) if BrokerPermission.ADMIN in granted else frozenset(granted)
            if len(self._cached) >= CACHED_RESOURCES_MAX:
                self._cached.clear()
            self._cached[resource_type, name] = cached
        return cached

    def check(self, resource_type: ResourceType, name: str, permission: BrokerPermission | None = None) -> None:
        """Checks that the user has `permission` on the topic, group or transactional id (`resource_type`) of this name.
        The default, None, stands for any permission, for example to see that the resource exists.

        Raises:
            RequestRefused: the permission was not granted.
        """
        granted = self.granted_on(resource_type, name)
        if permission not in granted and (permission is not None or not granted):
            raise RequestRefused(
                _AUTHORIZATION_FAILED_CODES[resource_type],
                f"no line of the users file grants {permission or 'any permission'} on {resource_type} {name!r}; "
                "add one",
            )

    @property
    def is_admin(self) -> bool:
        """True if the user has admin on all resources (`grant NAME admin *`, also with `*` as NAME)."""
        return any(grant.permission is BrokerPermission.ADMIN and grant.resource_type is None for grant in self.grants)

    def check_admin(self) -> None:
        """Checks that the user may send requests that concern the whole broker.

        Raises:
            RequestRefused: the user does not have admin on all resources.
        """
        if not self.is_admin:
            raise RequestRefused(
                ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
                "no line of the users file grants admin on all resources; add `grant NAME admin *`",
            )

    @property
    def can_write_any_topic(self) -> bool:
        """True if the user may write to at least one topic name."""
        return any(
            grant.permission is not BrokerPermission.READ and grant.resource_type in (None, ResourceType.TOPIC)
            for grant in self.grants
        )


class _AllPermissions(BrokerPermissions):
    """Permissions of every client of a broker without a users file: everything is allowed."""

    __slots__ = ()

    def granted_on(self, resource_type: ResourceType, name: str) -> frozenset[BrokerPermission]:
        return _EVERY_PERMISSION

    def check(self, resource_type: ResourceType, name: str, permission: BrokerPermission | None = None) -> None:
        return

    @property
    def is_admin(self) -> bool:
        return True

    @property
    def can_write_any_topic(self) -> bool:
        return True


_EVERY_PERMISSION: Final = frozenset(BrokerPermission)
ALL_PERMISSIONS: Final = _AllPermissions()
NO_PERMISSIONS: Final = BrokerPermissions()
