"""The users file: users, their password hashes and their permissions.

One entry per line, with words separated by blanks. `#` at the start of a word begins a comment:

    user  NAME  HASH                  HASH as `headrace registry user NAME` prints it; `-` is no password
    grant NAME  PERMISSION  PATTERN   PERMISSION is read, write or admin; PATTERN as in `permissions.SubjectPattern`
    grant NAME  SQL         *         SQL is sql-read or sql-write, for the SQL endpoint of `headrace up`
    grant NAME  payload     PATTERN   the console shows the content of messages of topics that match PATTERN
    certificate  NAME  SUBJECT        a client certificate with this subject authenticates the user NAME

The NAME of a grant may also be `*` (every user of the file), `@ROLE` (every principal whose token has the role) or
`anonymous` (clients without credentials or with an unknown certificate, which can only be granted read). SQL
permissions can only be granted to a user or to `*`, because the SQL endpoint requires a password. No other permission
includes `payload`, and anonymous clients cannot be granted it. Everything else is
denied, except requests that `required_permissions` declares public. SUBJECT is an RFC 4514 name such as
`CN=shop,O=Example`, with `%20` for a blank.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

from headrace.registry.access.passwords import PasswordHash
from headrace.registry.access.permissions import (
    WILDCARD,
    Permission,
    Permissions,
    SqlPermission,
    SubjectPattern,
    Target,
)
from headrace.registry.names import DEFAULT_CONTEXT, is_storable

ANONYMOUS: Final = "anonymous"
USERS_MAX: Final = 10_000
LINE_CHARS_MAX: Final = 4096
SHAPES: Final = {
    "user": "user NAME HASH",
    "grant": "grant NAME read|write|admin|payload|sql-read|sql-write PATTERN",
    "certificate": "certificate NAME SUBJECT",
}
NO_HASH: Final = "-"
SQL_PERMISSIONS: Final = {str(known): known for known in SqlPermission}
PAYLOAD: Final = "payload"
ROLE: Final = "@"
"""Prefix of a role name in a grant."""

# A comment begins at a blank or at the start of the line: a `#` inside a pattern is part of the pattern.
_COMMENT = re.compile(r"(^|\s)#.*")


class UsersFileInvalid(Exception):
    """The users file has a mistake. The message gives the mistake, and its line if it is in one; it never repeats a
    hash."""


@dataclass(frozen=True, slots=True)
class Principal:
    """The sender of a request. `name` is "" for an anonymous client, and for every client of a registry without a users
    file.

    `sql` is the permission on the SQL endpoint; None without a grant. `payload` are the patterns of the topics whose
    messages the console shows.
    """

    name: str
    permissions: Permissions
    sql: SqlPermission | None = None
    payload: tuple[SubjectPattern, ...] = ()

    def may_read_payload(self, topic: str) -> bool:
        """Whether the console may show the content of the topic's messages."""
        return any(pattern.covers(Target(DEFAULT_CONTEXT, topic)) for pattern in self.payload)

    @property
    def key(self) -> str:
        """Key of cached responses: principals with equal keys share them."""
        return self.permissions.key


@dataclass(frozen=True, slots=True)
class RegistryAccessPolicy:
    """The parsed users file. `anonymous` is the principal of clients without credentials or with an unknown
    certificate.

    `hashes` has the users with a password, `roles` the grants of each role, `payload` the patterns of topics by user or
    `@ROLE`, and `subjects` the user of each certificate subject.
    """

    hashes: Mapping[str, PasswordHash] = field(default_factory=dict, repr=False)
    principals: Mapping[str, Principal] = field(default_factory=dict)
    anonymous: Principal = Principal("", Permissions())
    roles: Mapping[str, tuple[tuple[Permission, SubjectPattern], ...]] = field(default_factory=dict)
    subjects: Mapping[str, str] = field(default_factory=dict)
    payload: Mapping[str, tuple[SubjectPattern, ...]] = field(default_factory=dict)

    def with_roles(self, name: str, roles: Sequence[str]) -> Principal:
        """A principal with the permissions of these roles, and of the user with that name if one exists."""
        user = self.principals.get(name)
        grants = [grant for role in sorted({*roles} & {*self.roles}) for grant in self.roles[role]]
        payload = [pattern for role in roles for pattern in self.payload.get(ROLE + role, ())]
        if user is not None:
            grants, payload = [*grants, *user.permissions.grants], [*payload, *user.payload]
        return Principal(name, Permissions(tuple(grants)), payload=tuple(payload))


def parse_users(text: str) -> RegistryAccessPolicy:
    """Parses the content of a users file.

    Raises:
        UsersFileInvalid: a line is malformed, contradicts another line or names a user that is not defined; there are
            more than `USERS_MAX` users; or the file has no user, no role and no grant for anonymous clients.
    """
    hashes: dict[str, PasswordHash | None] = {}
    subjects: dict[str, str] = {}
    grants: dict[str, list[tuple[Permission, SubjectPattern]]] = {WILDCARD: [], ANONYMOUS: []}
    sql: dict[str, SqlPermission] = {}
    payload: dict[str, list[SubjectPattern]] = {WILDCARD: []}
    first_grant: dict[str, int] = {}
    for number, words in _lines(text):
        kind, name, *rest = words
        try:
            if kind == "user":
                hashes[_new_name(name, hashes)] = None if rest == [NO_HASH] else PasswordHash.parse(*rest)
            elif kind == "certificate":
                _check_not_reserved(name)
                subjects[_new_subject(rest[0], subjects)] = name
                first_grant.setdefault(name, number)
            elif rest[0] in SQL_PERMISSIONS:
                _check_sql_grant(name, *rest)
                sql[name] = max(SQL_PERMISSIONS[rest[0]], sql.get(name, SqlPermission.READ))
                first_grant.setdefault(name, number)
            elif rest[0] == PAYLOAD:
                payload.setdefault(name, []).append(_payload_pattern(name, rest[1]))
                first_grant.setdefault(name, number)
            else:
                grants.setdefault(name, []).append(_grant(name, *rest))
                first_grant.setdefault(name, number)
        except ValueError as error:
            raise UsersFileInvalid(f"line {number}: {error}") from None
    for name, number in first_grant.items():
        if name not in (*hashes, WILDCARD, ANONYMOUS) and not name.startswith(ROLE):
            raise UsersFileInvalid(f"line {number}: user {name} is not defined; add the line `user {name} HASH`")
    roles = {name.removeprefix(ROLE): tuple(found) for name, found in grants.items() if name.startswith(ROLE)}
    if not (hashes or grants[ANONYMOUS] or roles):
        # An editor may empty the file before it writes the new content.
        raise UsersFileInvalid(
            "the file has no user and no grant for anonymous clients, so every request would be denied; add the line "
            "that `headrace registry user NAME` prints"
        )
    for_every_user = grants[WILDCARD]
    return RegistryAccessPolicy(
        {name: known for name, known in hashes.items() if known is not None},
        {
            name: Principal(
                name,
                Permissions((*grants.get(name, ()), *for_every_user)),
                max((sql[key] for key in (name, WILDCARD) if key in sql), default=None),
                (*payload.get(name, ()), *payload[WILDCARD]),
            )
            for name in hashes
        },
        Principal("", Permissions(tuple(grants[ANONYMOUS]))),
        roles,
        subjects,
        {name: tuple(patterns) for name, patterns in payload.items()},
    )


def user_line(name: str, password_hash: PasswordHash) -> str:
    """The line that defines a user in a users file.

    Raises:
        ValueError: the name is not allowed.
    """
    return f"user {_new_name(name, {})} {password_hash}"


def _lines(text: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > LINE_CHARS_MAX:
            raise UsersFileInvalid(f"line {number} is longer than {LINE_CHARS_MAX} characters")
        words = _COMMENT.sub("", line).split()
        if not words:
            continue
        shape = SHAPES.get(words[0])
        if shape is None or len(words) != len(shape.split()):
            raise UsersFileInvalid(f"line {number}: expected `{'` or `'.join(SHAPES.values())}`")
        yield number, words


def _new_subject(text: str, existing: Mapping[str, str]) -> str:
    subject = unquote(text)
    if subject in existing:
        raise ValueError(f"the certificate {subject} already belongs to user {existing[subject]}")
    return subject


def _check_not_reserved(name: str) -> None:
    if name in (WILDCARD, ANONYMOUS) or name.startswith(ROLE):
        raise ValueError(f"{name} is reserved for grants; choose another user name")


def _new_name(name: str, existing: Mapping[str, object]) -> str:
    _check_not_reserved(name)
    # A colon ends the name in HTTP basic authentication.
    if not name or ":" in name or "#" in name or not is_storable(name) or len(name.split()) != 1:
        raise ValueError(
            f"the user name {name!r} is empty or contains a colon, blank, number sign or control character"
        )
    if name in existing:
        raise ValueError(f"user {name} is already defined in an earlier line; remove one of the two lines")
    if len(existing) >= USERS_MAX:
        raise ValueError(f"there are more than {USERS_MAX} users; use tokens with roles for more")
    return name


def _grant(name: str, permission: str, pattern: str) -> tuple[Permission, SubjectPattern]:
    permissions = {str(known): known for known in Permission}
    if permission not in permissions:
        expected = ", ".join((*permissions, PAYLOAD, *SQL_PERMISSIONS))
        raise ValueError(f"{permission} is not a permission; expected {expected}")
    if name == ANONYMOUS and permissions[permission] is not Permission.READ:
        raise ValueError("anonymous clients can only be granted read")
    return permissions[permission], SubjectPattern.parse(pattern)


def _payload_pattern(name: str, pattern: str) -> SubjectPattern:
    if name == ANONYMOUS:
        raise ValueError("anonymous clients can only be granted read")
    return SubjectPattern.parse(pattern)


def _check_sql_grant(name: str, permission: str, pattern: str) -> None:
    if name == ANONYMOUS or name.startswith(ROLE):
        raise ValueError(f"{permission} can only be granted to a user or to `*`, because SQL clients send a password")
    if pattern != WILDCARD:
        raise ValueError(f"{permission} applies to all tables; expected `*` as its pattern, found {pattern}")
