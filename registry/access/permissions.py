"""Permissions of principals on subjects."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Final
from urllib.parse import unquote

from headrace.registry.names import (
    ALL_CONTEXTS_SCOPE,
    DEFAULT_CONTEXT,
    EVERY_CONTEXT_PREFIX,
    is_context_scope,
    split_subject,
)

WILDCARD: Final = "*"


class Permission(IntEnum):
    """A permission of a principal on a subject. Each permission includes the preceding ones."""

    READ = 1
    """Reads schemas, versions, configuration and mode; looks up schemas and checks compatibility."""
    WRITE = 2
    """Registers schemas, changes tags and soft-deletes versions."""
    ADMIN = 3
    """Deletes permanently, registers without a compatibility check, changes configuration and mode, and deletes
    contexts."""

    def __str__(self) -> str:
        return self.name.lower()


class SqlPermission(IntEnum):
    """A permission on the SQL endpoint of `headrace up`, for all tables. Writing includes reading."""

    READ = 1
    """Runs queries and lists tables."""
    WRITE = 2
    """Creates, fills and drops tables and views outside of the databases of the loader."""

    def __str__(self) -> str:
        return f"sql-{self.name.lower()}"


@dataclass(frozen=True, slots=True)
class Target:
    """The resource of a request: a subject, a context (`name` None), or everything (`context` None too)."""

    context: str | None = None
    name: str | None = None

    @classmethod
    def of_subject(cls, subject: str) -> Target:
        """Returns the target of a request for a subject, given by its qualified name."""
        return cls(*split_subject(subject))

    @classmethod
    def of_scope(cls, scope: str | None) -> Target:
        """Returns the target of a configuration or mode request: the subject, context or everything that `scope` names.
        None is the default context."""
        if scope is None:
            return cls(DEFAULT_CONTEXT)
        if scope == ALL_CONTEXTS_SCOPE:
            return cls()
        context, name = split_subject(scope)
        return cls(context, None if is_context_scope(scope) else name)

    def __str__(self) -> str:
        if self.context is None:
            return "everything"
        if self.name is None:
            return f"context {self.context}"
        return f"subject {self.name if self.context == DEFAULT_CONTEXT else f':{self.context}:{self.name}'}"


@dataclass(frozen=True, slots=True)
class SubjectPattern:
    """A pattern of subject names. `*` matches any text; `%2A` is a star, `%20` a blank, `%25` a percent sign.

    `*` alone matches every subject of every context. Other patterns apply to the default context unless they begin
    with a context (`:.context:orders-*`) or with `:*:`, which means every context.
    """

    text: str
    context: str | None
    pieces: tuple[str, ...]
    """The literal texts between the stars."""

    @classmethod
    def parse(cls, text: str) -> SubjectPattern:
        """Parses the pattern of a grant; the class describes the syntax.

        Raises:
            ValueError: the pattern is empty or its context has a star.
        """
        if not text:
            raise ValueError("the pattern is empty")
        context: str | None
        if text == WILDCARD:
            context, name = None, text
        elif text.startswith(EVERY_CONTEXT_PREFIX):
            context, name = None, text.removeprefix(EVERY_CONTEXT_PREFIX)
        else:
            context, name = split_subject(text)
            if WILDCARD in context:
                raise ValueError(f"the context in the pattern {text} contains `*`; write `:*:` for every context")
            context = unquote(context)
        return cls(text, context, tuple(unquote(piece) for piece in name.split(WILDCARD)))

    @property
    def matches_every_subject(self) -> bool:
        """Whether the pattern matches every subject of its contexts."""
        return len(self.pieces) > 1 and not any(self.pieces)

    def covers(self, target: Target) -> bool:
        """Whether the pattern matches the target. A target that is a context or everything needs a pattern that matches
        all its subjects."""
        if self.context is not None and self.context != target.context:
            return False
        return self.matches_every_subject or (target.name is not None and self._matches(target.name))

    def _matches(self, name: str) -> bool:
        # A regular expression with several stars would be slow on a long subject.
        first, *rest = self.pieces
        if not rest:
            return name == first
        last = rest.pop()
        if not name.startswith(first) or len(name) < len(first) + len(last) or not name.endswith(last):
            return False
        start, end = len(first), len(name) - len(last)
        for piece in rest:
            found = name.find(piece, start, end)
            if found < 0:
                return False
            start = found + len(piece)
        return True


@dataclass(frozen=True)
class Permissions:
    """The grants of a principal. The class has no `__slots__`, because its cached properties need a `__dict__`."""

    grants: tuple[tuple[Permission, SubjectPattern], ...] = ()

    def allow(self, permission: Permission, target: Target) -> bool:
        return any(given >= permission and pattern.covers(target) for given, pattern in self.grants)

    @cached_property
    def highest_anywhere(self) -> Permission | None:
        """The highest permission on any subject; None without a grant."""
        return max((permission for permission, _ in self.grants), default=None)

    @cached_property
    def highest_everywhere(self) -> Permission | None:
        """The highest permission that applies to every subject; None if no grant does."""
        return next((permission for permission in reversed(Permission) if self.allow(permission, Target())), None)

    @cached_property
    def key(self) -> str:
        """Part of the key of cached responses. Users with equal grants have equal keys, so they share cached
        responses."""
        rows = sorted(f"{permission} {pattern.text}" for permission, pattern in self.grants)
        return hashlib.blake2b("\n".join(rows).encode(), digest_size=12).hexdigest()


ALL_PERMISSIONS: Final = Permissions(((Permission.ADMIN, SubjectPattern.parse(WILDCARD)),))
"""The permissions of every client in a registry without a users file."""
