"""What a user may do: rights on topics, groups and transactional ids by patterns of their names. Decisions over
values."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headrace.broker.errors import RequestRefused
from headrace.broker.protocol.error_codes import ErrorCode

WILDCARD: Final = "*"
KNOWN_MAX: Final = 10_000
"""Of names whose rights one user's connections remember; then they begin anew."""


class Right(StrEnum):
    """`read` and `write` stand by themselves; `admin` includes both."""

    READ = "read"  # messages; members, offsets and commits of a group
    WRITE = "write"  # messages, and having a topic made by asking for it; using a transactional id
    ADMIN = "admin"  # creating, altering, deleting


class Kind(StrEnum):
    TOPIC = "topic"
    GROUP = "group"
    TRANSACTION = "transaction"  # a transactional id


_REFUSED: Final = {
    Kind.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    Kind.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    Kind.TRANSACTION: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


@dataclass(frozen=True, slots=True)
class Grant:
    """`kind` is None for everything there is: topics, groups, transactional ids, the broker itself."""

    right: Right
    kind: Kind | None
    name: re.Pattern[str]

    @classmethod
    def parse(cls, right: str, resource: str) -> Grant:
        """Reads `read topic:shop.*`, in words.

        Raises:
            ValueError: there is no such right, or nothing that it can be given on.
        """
        if right not in list(Right):
            raise ValueError(f"{right} is no right; expected {', '.join(Right)}")
        if resource == WILDCARD:
            return cls(Right(right), None, re.compile(".*", re.DOTALL))
        kind, colon, pattern = resource.partition(":")
        if kind not in list(Kind) or not colon or not pattern:
            raise ValueError(
                f"{resource} is nothing to have a right on; expected topic:PATTERN, group:PATTERN, "
                "transaction:PATTERN or *"
            )
        if kind == Kind.GROUP and right == Right.WRITE:
            raise ValueError("nobody writes to a group; its members need read")
        if kind == Kind.TRANSACTION and right == Right.READ:
            raise ValueError("nobody reads a transactional id; its producers need write")
        parts = (re.escape(part) for part in pattern.split(WILDCARD))
        return cls(Right(right), Kind(kind), re.compile(".*".join(parts), re.DOTALL))

    def covers(self, kind: Kind, name: str) -> bool:
        return self.kind in (None, kind) and self.name.fullmatch(name) is not None


class Rights:
    """Everything that a user was granted."""

    __slots__ = ("_known", "grants")

    def __init__(self, grants: Iterable[Grant] = ()) -> None:
        self.grants = tuple(grants)
        self._known: dict[tuple[Kind, str], frozenset[Right]] = {}

    def on(self, kind: Kind, name: str) -> frozenset[Right]:
        """All rights on one topic, group or transactional id."""
        known = self._known.get((kind, name))
        if known is None:
            given = {grant.right for grant in self.grants if grant.covers(kind, name)}
            known = frozenset(Right) if Right.ADMIN in given else frozenset(given)
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[kind, name] = known
        return known

    def check(self, kind: Kind, name: str, right: Right | None = None) -> None:
        """Without a right any will do, which is what it takes to see that something is there.

        Raises:
            RequestRefused: it was not granted.
        """
        given = self.on(kind, name)
        if right not in given and (right is not None or not given):
            raise RequestRefused(
                _REFUSED[kind], f"no line of the users file grants {right or 'anything'} on {kind} {name!r}"
            )

    @property
    def is_admin(self) -> bool:
        """Was everything granted?"""
        return any(grant.right is Right.ADMIN and grant.kind is None for grant in self.grants)

    def check_broker(self) -> None:
        """
        Raises:
            RequestRefused: not everything was granted, and this is about the broker itself.
        """
        if not self.is_admin:
            raise RequestRefused(
                ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "no line of the users file grants admin on everything"
            )

    @property
    def may_write(self) -> bool:
        """Is there any topic that could be written to?"""
        return any(grant.right is not Right.READ and grant.kind in (None, Kind.TOPIC) for grant in self.grants)


class _Unlimited(Rights):
    """Of everybody, where there are no users; asks nothing."""

    __slots__ = ()

    def on(self, kind: Kind, name: str) -> frozenset[Right]:
        return _ALL

    def check(self, kind: Kind, name: str, right: Right | None = None) -> None:
        return

    @property
    def is_admin(self) -> bool:
        return True

    @property
    def may_write(self) -> bool:
        return True


_ALL: Final = frozenset(Right)
UNLIMITED: Final = _Unlimited()
NOTHING: Final = Rights()
