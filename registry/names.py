"""Names of subjects and contexts.

A context is a registry within the registry, with separate subjects and ids. Its name begins with a dot; `.` is the
default context. The qualified name of a subject is `:.context:name`, or just `name` in the default context.

A scope is the part of the registry to which a configuration or mode applies: a subject (its qualified name), a context
(`:.context:`), the default context (None) or all contexts (`ALL_CONTEXTS_SCOPE`).
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
"""Pseudo-context without subjects. Its configuration applies to every context."""

ALL_CONTEXTS_SCOPE: Final = ":.__GLOBAL:"
"""Scope of the configuration and mode that apply to every context."""

EVERY_CONTEXT_PREFIX: Final = ":*:"
NAME_BYTES_MAX: Final = 1_300
"""Longest name of a subject or of a context, in UTF-8. A PostgreSQL index entry contains both and holds at most 2,700
bytes."""

RESERVED_NAMES: Final = frozenset({"__GLOBAL", "__EMPTY"})


@dataclass(frozen=True, slots=True)
class SubjectFilter:
    """Selects subjects by a prefix of the name, in one context; `context` None means all contexts."""

    prefix: str = ""
    context: str | None = None

    @property
    def is_storable(self) -> bool:
        """Whether the database can store the prefix and the context. If it cannot, no subject matches the filter."""
        return is_storable(self.prefix) and is_storable(self.context or "")

    @classmethod
    def of(cls, text: str) -> SubjectFilter:
        """Parses the query parameter `subjectPrefix`: `:*:a` means every context, `:.c:a` one context, `a` the default
        context."""
        if text.startswith(EVERY_CONTEXT_PREFIX):
            return cls(text.removeprefix(EVERY_CONTEXT_PREFIX))
        context, prefix = split_subject(text)
        return cls(prefix, context)


ALL_SUBJECTS: Final = SubjectFilter()


def split_subject(text: str) -> tuple[str, str]:
    """Splits the subject of a request. Returns (context, name in the context). `:.:a` equals `a`, and `:.c` equals
    `:.c:`."""
    if not text.startswith(":."):
        return DEFAULT_CONTEXT, text
    context, _, name = text[1:].partition(":")
    return context, name


def qualified(context: str, name: str) -> str:
    """The qualified name of a subject: `:.context:name`, or just `name` in the default context."""
    return name if context == DEFAULT_CONTEXT else f":{context}:{name}"


def context_scope(context: str) -> str | None:
    """The scope of a context's configuration and mode: `:.context:`, or None for the default context."""
    return None if context == DEFAULT_CONTEXT else qualified(context, "")


def scopes_of(scope: str | None) -> tuple[str | None, ...]:
    """The scopes that determine the configuration and mode of a scope: the scope itself, its context, then all
    contexts.

    The settings of the default context do not apply to other contexts.
    """
    if scope == ALL_CONTEXTS_SCOPE:
        return (ALL_CONTEXTS_SCOPE,)
    context = None if scope is None else context_scope(context_of(scope))
    return (context, ALL_CONTEXTS_SCOPE) if scope == context else (scope, context, ALL_CONTEXTS_SCOPE)


def filter_of_scope(scope: str | None) -> SubjectFilter:
    """Returns the filter for the subjects of a scope's context, or for all subjects if the scope is all contexts."""
    if scope == ALL_CONTEXTS_SCOPE:
        return ALL_SUBJECTS
    return SubjectFilter(context=DEFAULT_CONTEXT if scope is None else context_of(scope))


def is_context_scope(scope: str | None) -> bool:
    """Whether a scope is a context or all contexts, as opposed to a single subject."""
    return scope is None or (is_qualified(scope) and not split_subject(scope)[1])


def context_of(subject: str) -> str:
    return split_subject(subject)[0]


def is_qualified(text: str) -> bool:
    """Whether a name has a context other than the default one."""
    return context_of(text) != DEFAULT_CONTEXT


def subject_name(text: str) -> str:
    """Parses a subject in a URL or a reference and returns its qualified name: `:.:orders` gives `orders`.

    Raises:
        InvalidSubject: the name or its context is too long or reserved, or the text is ambiguous or not storable (see
            `is_storable`).
    """
    context, name = _split_valid(text)
    if context == GLOBAL_CONTEXT:
        raise InvalidSubject(subject=text)
    return qualified(context, name)


def scope_name(text: str) -> str | None:
    """Parses the scope in the URL of a configuration or mode request: a subject, a context or all contexts. Returns the
    qualified name of the scope; None for the default context.

    Raises:
        InvalidSubject: the name is too long or reserved, its context is too long, or the text is ambiguous or not
            storable (see `is_storable`). The context `.__GLOBAL`, which means all contexts, is only valid without a
            subject.
    """
    context, name = _split_valid(text)
    if context == GLOBAL_CONTEXT and name:
        raise InvalidSubject(subject=text)
    # The empty text is the subject with the empty name; `:.:` is the default context.
    if text.startswith(":.") and context == DEFAULT_CONTEXT and not name:
        return None
    return qualified(context, name)


def resolve_in_context(subject: str, text: str) -> str:
    """Returns the qualified name of the subject that a reference or alias means. Without a context in its text, it
    means the context of the referring subject.

    Args:
        subject: the referring subject.
        text: the subject in the reference, with or without a context.

    Raises:
        InvalidSubject: `text` is not a valid subject; see `subject_name`.
    """
    name = subject_name(text)
    return name if text.startswith(":.") else qualified(context_of(subject), name)


def context_name(text: str) -> str:
    """Parses a context in a URL, spelled `eu`, `.eu` or `:.eu:`, and returns its name, `.eu`.

    Raises:
        InvalidSubject: the name has a colon, is not storable (see `is_storable`), or is too long.
    """
    if text.startswith(":.") and text.endswith(":") and len(text) > 2:
        text = text[1:-1]
    name = text if text.startswith(".") else f".{text}"
    if ":" in name or not is_storable(name) or _is_long(name):
        raise InvalidSubject(subject=text)
    return name


def is_storable(text: str) -> bool:
    """Whether a text has no ISO control characters and no lone surrogates, so that every database can store it."""
    return not any(unicodedata.category(character) in ("Cc", "Cs") for character in text)


def _split_valid(text: str) -> tuple[str, str]:
    context, name = split_subject(text)
    # `:.::.c:a` would be the name `:.c:a` in the default context, which is the qualified name of another subject.
    ambiguous = context == DEFAULT_CONTEXT and name.startswith((":.", EVERY_CONTEXT_PREFIX))
    if name in RESERVED_NAMES or ambiguous or not is_storable(text) or _is_long(context) or _is_long(name):
        raise InvalidSubject(subject=text)
    return context, name


def _is_long(name: str) -> bool:
    return len(name.encode()) > NAME_BYTES_MAX


def quoted_for_log(name: str | None) -> str:
    """The name of a subject or scope as one word of a log line, quoted unless it is a plain word. The name None stands
    for the default context as a scope."""
    text = f":{DEFAULT_CONTEXT}:" if name is None else name
    return text if _PLAIN_WORD.fullmatch(text) else json.dumps(text)


_PLAIN_WORD: Final = re.compile(r"[A-Za-z0-9._:/@+-]+")
