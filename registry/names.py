"""Names of subjects and contexts.

A context is a registry within the registry, with subjects and ids of its own. Its name begins with a dot; `.` is the
default one. A subject is named by one text everywhere: `:.context:name`, or plain `name` in the default context.
"""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import dataclass
from typing import Final

from headrace.registry.errors import InvalidSubject

DEFAULT_CONTEXT: Final = "."
GLOBAL_CONTEXT: Final = ".__GLOBAL"
"""Not a context that could hold subjects: what is configured for it holds for every context."""

EVERYWHERE: Final = ":.__GLOBAL:"
"""Scope of the configuration and the mode of every context."""

EVERY_CONTEXT_PREFIX: Final = ":*:"
NAME_BYTES_MAX: Final = 1_300
"""Of a subject's name and of a context's, in UTF-8. PostgreSQL indexes at most 2,700 bytes, where both meet."""

RESERVED_NAMES: Final = frozenset({"__GLOBAL", "__EMPTY"})


@dataclass(frozen=True, slots=True)
class SubjectFilter:
    """Subjects whose name begins with `prefix`, in one context or (None) in all."""

    prefix: str = ""
    context: str | None = None

    @property
    def is_storable(self) -> bool:
        """Whether there can be such subjects."""
        return is_storable(self.prefix) and is_storable(self.context or "")

    @classmethod
    def of(cls, text: str) -> SubjectFilter:
        """What a `subjectPrefix` asks for: `:*:a` in every context, `:.c:a` in that one, `a` in the default one."""
        if text.startswith(EVERY_CONTEXT_PREFIX):
            return cls(text.removeprefix(EVERY_CONTEXT_PREFIX))
        context, prefix = split_subject(text)
        return cls(prefix, context)


EVERYTHING: Final = SubjectFilter()


def split_subject(text: str) -> tuple[str, str]:
    """(context, name) of a subject as clients write it; `:.:a` and `a` are the same, `:.c` is `:.c:`."""
    if not text.startswith(":."):
        return DEFAULT_CONTEXT, text
    context, _, name = text[1:].partition(":")
    return context, name


def qualified(context: str, name: str) -> str:
    """The one text for a name in a context."""
    return name if context == DEFAULT_CONTEXT else f":{context}:{name}"


def context_scope(context: str) -> str | None:
    """The scope of what holds for a whole context; None is that of the default one."""
    return None if context == DEFAULT_CONTEXT else qualified(context, "")


def scopes_of(scope: str | None) -> tuple[str | None, ...]:
    """The scopes whose configuration and mode matter in a scope, the nearest first.

    What is set for the default context says nothing about the others.
    """
    if scope == EVERYWHERE:
        return (EVERYWHERE,)
    whole = None if scope is None else context_scope(context_of(scope))
    return (whole, EVERYWHERE) if scope == whole else (scope, whole, EVERYWHERE)


def filter_of_scope(scope: str | None) -> SubjectFilter:
    """The subjects that a scope of a whole context governs."""
    if scope == EVERYWHERE:
        return EVERYTHING
    return SubjectFilter(context=DEFAULT_CONTEXT if scope is None else context_of(scope))


def is_whole_context(scope: str | None) -> bool:
    """Whether a scope is a context, or all of them, and not a single subject."""
    return scope is None or (is_qualified(scope) and not split_subject(scope)[1])


def context_of(subject: str) -> str:
    return split_subject(subject)[0]


def is_qualified(text: str) -> bool:
    """Whether a text names a context other than the default one."""
    return context_of(text) != DEFAULT_CONTEXT


def subject_name(text: str) -> str:
    """The subject that a path segment or a reference names; `:.:orders` is `orders`.

    Raises:
        InvalidSubject: it is long, has control characters, a reserved name or context, or cannot be told from another.
    """
    context, name = _split_valid(text)
    if context == GLOBAL_CONTEXT:
        raise InvalidSubject(subject=text)
    return qualified(context, name)


def scope_name(text: str) -> str | None:
    """The subject or context that a path segment of /config and /mode names; None is all of the default context.

    Raises:
        InvalidSubject: as in `subject_name`, except that the context of all contexts has a scope (`EVERYWHERE`).
    """
    context, name = _split_valid(text)
    if context == GLOBAL_CONTEXT and name:
        raise InvalidSubject(subject=text)
    # An empty text is the subject of that name, but a context without a subject is the context.
    if text.startswith(":.") and context == DEFAULT_CONTEXT and not name:
        return None
    return qualified(context, name)


def in_context_of(subject: str, text: str) -> str:
    """The subject that a reference of `subject` names: in the same context unless it says another.

    Raises:
        InvalidSubject: as in `subject_name`.
    """
    name = subject_name(text)
    return name if text.startswith(":.") else qualified(context_of(subject), name)


def context_name(text: str) -> str:
    """The context that a path segment names: with or without its dot, or as it stands in front of a subject.

    Raises:
        InvalidSubject: it holds what no name of a context can.
    """
    if text.startswith(":.") and text.endswith(":") and len(text) > 2:
        text = text[1:-1]
    name = text if text.startswith(".") else f".{text}"
    if ":" in name or not is_storable(name) or _is_long(name):
        raise InvalidSubject(subject=text)
    return name


def is_storable(text: str) -> bool:
    """Whether a text is free of ISO control characters and lone surrogates, so that every database can hold it."""
    return not any(unicodedata.category(character) in ("Cc", "Cs") for character in text)


def _split_valid(text: str) -> tuple[str, str]:
    context, name = split_subject(text)
    # `:.::.c:a` would be the name `:.c:a` in the default context, which is already the text for another subject.
    ambiguous = context == DEFAULT_CONTEXT and name.startswith((":.", EVERY_CONTEXT_PREFIX))
    if name in RESERVED_NAMES or ambiguous or not is_storable(text) or _is_long(context) or _is_long(name):
        raise InvalidSubject(subject=text)
    return context, name


def _is_long(name: str) -> bool:
    return len(name.encode()) > NAME_BYTES_MAX


def in_log(name: str | None) -> str:
    """A subject or scope as one word of a log line: quoted where a reader could take it for more than that.

    None is the scope of the default context.
    """
    text = f":{DEFAULT_CONTEXT}:" if name is None else name
    return text if _PLAIN_WORD.fullmatch(text) else json.dumps(text)


_PLAIN_WORD: Final = re.compile(r"[A-Za-z0-9._:/@+-]+")
