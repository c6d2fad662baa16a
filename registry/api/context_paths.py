"""`/contexts/{context}/…`: any call of the API, in that context.

Such a call is the same as one without the prefix whose subject is qualified: `/contexts/.c/subjects/a` is
`/subjects/:.c:a`. Paths and queries come and go as they are on the wire, percent-encoded.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, quote, unquote, urlencode

from headrace.registry.errors import InvalidSubject
from headrace.registry.names import DEFAULT_CONTEXT, EVERY_CONTEXT_PREFIX, context_name, qualified

SETTINGS_PATHS = ("config", "mode")
PREFIX_PARAMETERS = ("subjectPrefix", "subject")
"""Of lists of subjects and schemas, by which clients name the beginning of a subject."""


def in_context(path: str, query: str) -> tuple[str, str]:
    """The path and query of the call without `/contexts/{context}` in front; others are returned as they are.

    A context's name that no context can have leaves the path as it is too: there is nothing at it.
    """
    parts = path.split("/")
    # "", "contexts", the context, and what is asked of it
    if len(parts) < 4 or parts[1] != "contexts" or parts[0]:
        return path, query
    try:
        context = context_name(unquote(parts[2], errors="replace"))
    except InvalidSubject:
        return path, query
    return _in_context(context, parts[3:], query)


def _in_context(context: str, parts: list[str], query: str) -> tuple[str, str]:
    kind = parts[0]
    if kind in SETTINGS_PATHS:
        named = len(parts) > 1 and bool(parts[1])
        if not named and context == DEFAULT_CONTEXT:
            return f"/{kind}", query
        scope = _qualified(context, parts[1]) if named else quote(qualified(context, ""), safe="")
        return "/" + "/".join([kind, scope, *parts[2:]]), query
    if "subjects" in parts[:-1]:
        place = parts.index("subjects") + 1
        return "/" + "/".join([*parts[:place], _qualified(context, parts[place]), *parts[place + 1 :]]), query
    if kind == "schemas" and parts[1:2] == ["ids"]:
        query = _with_subject(context, query, "subject", ("subject",))
    elif parts in (["subjects"], ["schemas"]):
        query = _with_subject(context, query, "subjectPrefix", PREFIX_PARAMETERS)
    return "/" + "/".join(parts), query


def _qualified(context: str, segment: str) -> str:
    name = unquote(segment, errors="replace")
    return segment if _names_context(name) else quote(qualified(context, ""), safe="") + segment


def _with_subject(context: str, query: str, name: str, names: tuple[str, ...]) -> str:
    """The query with the first parameter of these names qualified, or one called `name` that is only the context."""
    pairs = parse_qsl(query, keep_blank_values=True)
    found = next((value for wanted in names for key, value in pairs if key == wanted), "")
    if not _names_context(found):
        found = qualified(context, found)
    return urlencode([(name, found), *((key, value) for key, value in pairs if key not in names)])


def _names_context(text: str) -> bool:
    return text.startswith((":.", EVERY_CONTEXT_PREFIX))
