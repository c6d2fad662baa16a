"""The users file: who there is and what each may do.

One line each, words separated by blanks, `#` begins a comment:

    user  NAME  HASH                  HASH as `headrace registry user NAME` prints it; `-` is no password
    grant NAME  RIGHT  PATTERN        RIGHT is read, write or admin; PATTERN as in `rights.SubjectPattern`
    certificate  NAME  SUBJECT        whoever shows a client certificate of that subject is the user NAME

In a grant the name `*` is every user of the file, `@ROLE` is whoever has the role by a token, and `anonymous` is
whoever comes with nothing, who can only be given read. What no line grants is refused. A SUBJECT is written as
`CN=shop,O=Example` (RFC 4514), with `%20` for a blank.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

from headrace.registry.access.passwords import PasswordHash
from headrace.registry.access.rights import WILDCARD, Right, Rights, SubjectPattern
from headrace.registry.names import is_storable

ANONYMOUS: Final = "anonymous"
USERS_MAX: Final = 10_000
LINE_CHARS_MAX: Final = 4096
SHAPES: Final = {
    "user": "user NAME HASH",
    "grant": "grant NAME read|write|admin PATTERN",
    "certificate": "certificate NAME SUBJECT",
}
NO_HASH: Final = "-"
ROLE: Final = "@"
"""Before the name of a role, where a grant may name a user."""

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
    """A users file, read. `anonymous` is whoever comes without a password.

    `hashes` has those who have one; `roles` what each role is granted, `subjects` whose a certificate's subject is.
    """

    hashes: Mapping[str, PasswordHash] = field(default_factory=dict, repr=False)
    principals: Mapping[str, Principal] = field(default_factory=dict)
    anonymous: Principal = Principal("", Rights())
    roles: Mapping[str, tuple[tuple[Right, SubjectPattern], ...]] = field(default_factory=dict)
    subjects: Mapping[str, str] = field(default_factory=dict)

    def with_roles(self, name: str, roles: Sequence[str]) -> Principal:
        """Somebody with the rights of these roles, and of the user of that name if there is one."""
        user = self.principals.get(name)
        granted = [grant for role in sorted({*roles} & {*self.roles}) for grant in self.roles[role]]
        return Principal(name, Rights((*granted, *(() if user is None else user.rights.granted))))


def parse_users(text: str) -> Policy:
    """The policy that a users file states.

    Raises:
        UsersFileInvalid: a line is not one of the two kinds, or they contradict each other.
    """
    hashes: dict[str, PasswordHash | None] = {}
    subjects: dict[str, str] = {}
    granted: dict[str, list[tuple[Right, SubjectPattern]]] = {WILDCARD: [], ANONYMOUS: []}
    first_grant: dict[str, int] = {}
    for number, words in _lines(text):
        kind, name, *rest = words
        try:
            if kind == "user":
                hashes[_new_name(name, hashes)] = None if rest == [NO_HASH] else PasswordHash.parse(*rest)
            elif kind == "certificate":
                subjects[_new_subject(rest[0], subjects)] = name
                first_grant.setdefault(name, number)
            else:
                granted.setdefault(name, []).append(_grant(name, *rest))
                first_grant.setdefault(name, number)
        except ValueError as error:
            raise UsersFileInvalid(f"line {number}: {error}") from None
    for name, number in first_grant.items():
        if name not in (*hashes, WILDCARD, ANONYMOUS) and not name.startswith(ROLE):
            raise UsersFileInvalid(f"line {number}: no line makes {name} a user")
    roles = {name.removeprefix(ROLE): tuple(grants) for name, grants in granted.items() if name.startswith(ROLE)}
    if not (hashes or granted[ANONYMOUS] or roles):
        # Also what a file looks like between being emptied and being written again.
        raise UsersFileInvalid("it has no user and gives anonymous nothing, so that nobody could do anything")
    everybody = granted[WILDCARD]
    return Policy(
        {name: known for name, known in hashes.items() if known is not None},
        {name: Principal(name, Rights((*granted.get(name, ()), *everybody))) for name in hashes},
        Principal("", Rights(tuple(granted[ANONYMOUS]))),
        roles,
        subjects,
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


def _new_subject(text: str, taken: Mapping[str, str]) -> str:
    subject = unquote(text)
    if subject in taken:
        raise ValueError(f"the certificate of {subject} is {taken[subject]}'s already")
    return subject


def _new_name(name: str, taken: Mapping[str, object]) -> str:
    if name in (WILDCARD, ANONYMOUS) or name.startswith(ROLE):
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
