"""The users file: who there is and what each may do.

One line each, words separated by blanks, `#` begins a comment:

    user  NAME  HASH                  HASH as `headrace registry user NAME` prints it
    grant NAME  RIGHT  PATTERN        RIGHT is read, write or admin; PATTERN as in `rights.SubjectPattern`

In a grant the name `*` is every user of the file, and `anonymous` is whoever comes without a password, who can only
be given read. What no line grants is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace.registry.access.passwords import PasswordHash
from headrace.registry.access.rights import WILDCARD, Right, Rights, SubjectPattern
from headrace.registry.names import is_storable

ANONYMOUS: Final = "anonymous"
USERS_MAX: Final = 10_000
LINE_CHARS_MAX: Final = 4096
SHAPES: Final = {"user": "user NAME HASH", "grant": "grant NAME read|write|admin PATTERN"}

# Followed by a blank or not at all, so that a `#` within a pattern is one.
_COMMENT = re.compile(r"(^|\s)#.*")


class UsersFileInvalid(Exception):
    """The message says which line, and what is wrong with it without repeating a hash."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who sent a request; `name` is "" for nobody that is known."""

    name: str
    rights: Rights

    @property
    def key(self) -> str:
        """Answers that were made for one may be given to all others with the same key."""
        return self.rights.key


@dataclass(frozen=True, slots=True)
class Policy:
    """A users file, read. `anonymous` is whoever comes without a password."""

    hashes: Mapping[str, PasswordHash] = field(default_factory=dict, repr=False)
    principals: Mapping[str, Principal] = field(default_factory=dict)
    anonymous: Principal = Principal("", Rights())


def parse_users(text: str) -> Policy:
    """The policy that a users file states.

    Raises:
        UsersFileInvalid: a line is not one of the two kinds, or they contradict each other.
    """
    hashes: dict[str, PasswordHash] = {}
    granted: dict[str, list[tuple[Right, SubjectPattern]]] = {WILDCARD: [], ANONYMOUS: []}
    first_grant: dict[str, int] = {}
    for number, words in _lines(text):
        kind, name, *rest = words
        try:
            if kind == "user":
                hashes[_new_name(name, hashes)] = PasswordHash.parse(*rest)
            else:
                granted.setdefault(name, []).append(_grant(name, *rest))
                first_grant.setdefault(name, number)
        except ValueError as error:
            raise UsersFileInvalid(f"line {number}: {error}") from None
    for name, number in first_grant.items():
        if name not in (*hashes, WILDCARD, ANONYMOUS):
            raise UsersFileInvalid(f"line {number}: no line makes {name} a user")
    if not hashes and not granted[ANONYMOUS]:
        # Also what a file looks like between being emptied and being written again.
        raise UsersFileInvalid("it has no user and gives anonymous nothing, so that nobody could do anything")
    everybody = granted[WILDCARD]
    return Policy(
        hashes,
        {name: Principal(name, Rights((*granted.get(name, ()), *everybody))) for name in hashes},
        Principal("", Rights(tuple(granted[ANONYMOUS]))),
    )


def user_line(name: str, password_hash: PasswordHash) -> str:
    """The line of a users file that makes a user.

    Raises:
        ValueError: no user can be called so.
    """
    return f"user {_new_name(name, {})} {password_hash}"


def _lines(text: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > LINE_CHARS_MAX:
            raise UsersFileInvalid(f"line {number}: it is longer than {LINE_CHARS_MAX} characters")
        words = _COMMENT.sub("", line).split()
        if not words:
            continue
        shape = SHAPES.get(words[0])
        if shape is None or len(words) != len(shape.split()):
            raise UsersFileInvalid(f"line {number}: expected `{'` or `'.join(SHAPES.values())}`")
        yield number, words


def _new_name(name: str, taken: Mapping[str, PasswordHash]) -> str:
    if name in (WILDCARD, ANONYMOUS):
        raise ValueError(f"{name} is the name of no user")
    # A colon ends the name in HTTP basic authentication.
    if not name or ":" in name or "#" in name or not is_storable(name) or len(name.split()) != 1:
        raise ValueError("a user's name has no colon, blank, number sign or control character")
    if name in taken:
        raise ValueError(f"user {name} is there already")
    if len(taken) >= USERS_MAX:
        raise ValueError(f"there are more than {USERS_MAX} users")
    return name


def _grant(name: str, right: str, pattern: str) -> tuple[Right, SubjectPattern]:
    rights = {str(known): known for known in Right}
    if right not in rights:
        raise ValueError(f"{right} is no right; expected {', '.join(rights)}")
    if name == ANONYMOUS and rights[right] is not Right.READ:
        raise ValueError("anonymous can only be given read")
    return rights[right], SubjectPattern.parse(pattern)
