"""What somebody may do with which subjects."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Final
from urllib.parse import unquote

from headrace.registry.names import DEFAULT_CONTEXT, EVERY_CONTEXT_PREFIX, EVERYWHERE, is_whole_context, split_subject

WILDCARD: Final = "*"


class Right(IntEnum):
    """Each includes those before it."""

    READ = 1
    """Schemas, versions, configuration and mode; asking whether a schema is there or would be compatible."""
    WRITE = 2
    """Registering, and deleting what can be brought back."""
    ADMIN = 3
    """Deleting for good, and changing configuration and mode."""

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Target:
    """What a request is about: a subject, all of a context (`name` None), or everything (`context` None too)."""

    context: str | None = None
    name: str | None = None

    @classmethod
    def of_subject(cls, subject: str) -> Target:
        """A subject by its qualified name."""
        return cls(*split_subject(subject))

    @classmethod
    def of_scope(cls, scope: str | None) -> Target:
        """What a configuration or a mode is set for, as `registry.names.scope_name` gives it."""
        if scope is None:
            return cls(DEFAULT_CONTEXT)
        if scope == EVERYWHERE:
            return cls()
        context, name = split_subject(scope)
        return cls(context, None if is_whole_context(scope) else name)

    def __str__(self) -> str:
        if self.context is None:
            return "everything"
        if self.name is None:
            return f"context {self.context}"
        return f"subject {self.name if self.context == DEFAULT_CONTEXT else f':{self.context}:{self.name}'}"


@dataclass(frozen=True, slots=True)
class SubjectPattern:
    """Subjects by name; `*` stands for any text, and `%2A` for a star, `%20` for a blank, `%25` for a percent sign.

    `*` alone is every subject of every context. Else a pattern speaks of the default context, unless it begins with
    a context as subjects do (`:.context:orders-*`) or with `:*:`, which is every context.
    """

    text: str
    context: str | None
    pieces: tuple[str, ...]
    """The literal texts between the stars."""

    @classmethod
    def parse(cls, text: str) -> SubjectPattern:
        """
        Raises:
            ValueError: it is empty or its context has a star.
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
                raise ValueError("a context has no wildcard; `:*:` is every context")
            context = unquote(context)
        return cls(text, context, tuple(unquote(piece) for piece in name.split(WILDCARD)))

    @property
    def is_whole(self) -> bool:
        """Whether every subject of its contexts matches."""
        return len(self.pieces) > 1 and not any(self.pieces)

    def covers(self, target: Target) -> bool:
        """Whether all of the target matches."""
        if self.context is not None and self.context != target.context:
            return False
        return self.is_whole or (target.name is not None and self._matches(target.name))

    def _matches(self, name: str) -> bool:
        # Not a regular expression: some stars over a long subject would make that slow.
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
class Rights:
    """Everything that somebody was granted. Not slotted, so that what follows from it is computed once."""

    granted: tuple[tuple[Right, SubjectPattern], ...] = ()

    def allow(self, right: Right, target: Target) -> bool:
        return any(given >= right and pattern.covers(target) for given, pattern in self.granted)

    @cached_property
    def somewhere(self) -> Right | None:
        """The most that they may do anywhere; None is nothing at all."""
        return max((right for right, _ in self.granted), default=None)

    @cached_property
    def everywhere(self) -> Right | None:
        """What they may do with everything."""
        return next((right for right in reversed(Right) if self.allow(right, Target())), None)

    @cached_property
    def key(self) -> str:
        """Equal for equal rights, whoever has them: what is kept of answers goes by it."""
        rows = sorted(f"{right} {pattern.text}" for right, pattern in self.granted)
        return hashlib.blake2b("\n".join(rows).encode(), digest_size=12).hexdigest()


UNLIMITED: Final = Rights(((Right.ADMIN, SubjectPattern.parse(WILDCARD)),))
"""What everybody has in a registry without users."""
