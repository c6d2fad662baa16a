"""The users file: names, passwords and permissions.

One entry per line, words separated by blanks; a word that begins with `#` begins a comment:

    user  NAME  VERIFIERS              as `headrace broker user NAME` prints it; see `scram`
    grant NAME  PERMISSION  RESOURCE   PERMISSION is read, write or admin;
                                       RESOURCE is topic:PATTERN, group:PATTERN, transaction:PATTERN or *

In a grant the name `*` means every user of the file. A `*` in a PATTERN matches any text. Access to topics, groups and
transactional ids, and administration of the broker, are refused unless they are granted.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from headrace.broker.access.permissions import WILDCARD, BrokerPermissions, Grant
from headrace.broker.access.scram import HASHES, Verifier
from headrace.broker.errors import UsersUnusable

logger = logging.getLogger(__name__)

USERS_MAX: Final = 10_000
LINE_CHARS_MAX: Final = 4096
FILE_BYTES_MAX: Final = 64 * 1024 * 1024
LINE_FORMATS: Final = {
    "user": "user NAME VERIFIERS",
    "grant": "grant NAME read|write|admin topic:PATTERN|group:PATTERN|transaction:PATTERN|*",
}

# A comment starts at a `#` after a blank or at the start of a line; a `#` inside a name is part of the name.
_COMMENT = re.compile(r"(^|\s)#.*")
_NAME = re.compile(r"[^\s\x00-\x1f\x7f#*]{1,250}")

Verifiers = Mapping[str, Verifier]
"""The stored forms of one user's password (see `scram`), by mechanism."""


@dataclass(frozen=True, slots=True)
class BrokerAccessPolicy:
    """Content of a users file: the verifiers (stored passwords) and the permissions of each user."""

    users: Mapping[str, Verifiers] = field(repr=False)
    permissions: Mapping[str, BrokerPermissions]


def parse_users(text: str) -> BrokerAccessPolicy:
    """Parses the text of a users file. Returns the verifiers (stored passwords) and the permissions of each user.

    Raises:
        ValueError: a line is malformed, lines contradict each other, or the file has no user; the message repeats no
            verifier of a `user` line.
    """
    users: dict[str, Verifiers] = {}
    granted: dict[str, list[Grant]] = {}
    first_line: dict[str, int] = {}
    for number, (kind, name, *rest) in _lines(text):
        try:
            if kind == "user":
                users[_checked_name(name, users)] = _verifiers(rest[0])
            else:
                granted.setdefault(name, []).append(Grant.parse(*rest))
                first_line.setdefault(name, number)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    for name, number in first_line.items():
        if name != WILDCARD and name not in users:
            raise ValueError(f"line {number}: user {name} does not exist; add `{LINE_FORMATS['user']}`")
    if not users:
        # An editor may truncate the file before it writes it, so an empty file must not lock out all users.
        raise ValueError("the file has no user line, so no client could log in; add one with `headrace broker user`")
    for_all_users = granted.get(WILDCARD, [])
    return BrokerAccessPolicy(
        users, {name: BrokerPermissions((*granted.get(name, ()), *for_all_users)) for name in users}
    )


def user_line(name: str, verifiers: Verifiers) -> str:
    """Formats the `user` line of a users file, which stores the verifiers (stored passwords) of a user, one for each
    SASL mechanism.

    Raises:
        ValueError: the name is not allowed.
    """
    return f"user {_checked_name(name, {})} {','.join(map(str, verifiers.values()))}"


def _lines(text: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > LINE_CHARS_MAX:
            raise ValueError(f"line {number}: the line has more than {LINE_CHARS_MAX} characters")
        words = _COMMENT.sub("", line).split()
        if not words:
            continue
        line_format = LINE_FORMATS.get(words[0])
        if line_format is None or len(words) != len(line_format.split()):
            raise ValueError(f"line {number}: expected `{'` or `'.join(LINE_FORMATS.values())}`")
        yield number, words


def _checked_name(name: str, used_names: Mapping[str, object]) -> str:
    if _NAME.fullmatch(name) is None:
        raise ValueError("a user name cannot contain blanks, *, # or control characters, nor more than 250 characters")
    if name in used_names:
        raise ValueError(f"user {name} is defined twice")
    if len(used_names) >= USERS_MAX:
        raise ValueError(f"the file has more than {USERS_MAX} users")
    return name


def _verifiers(text: str) -> Verifiers:
    verifiers = [Verifier.parse(part) for part in text.split(",")]
    by_mechanism = {verifier.mechanism: verifier for verifier in verifiers}
    if len(by_mechanism) != len(HASHES) or len(verifiers) != len(HASHES):
        raise ValueError(f"expected two SCRAM verifiers, one for {' and one for '.join(HASHES)}, separated by a comma")
    return by_mechanism


class BrokerUsersFile:
    """A users file that may change while the broker runs. `policy` is the last valid content.

    Raises:
        UsersUnusable: the file cannot be read, or has an error.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stat: tuple[int, int, int] | None = None
        self.policy = self._read()

    def _read(self) -> BrokerAccessPolicy:
        try:
            stat = self._path.stat()
            self._stat = stat.st_mtime_ns, stat.st_size, stat.st_ino
            with self._path.open(encoding="utf-8") as file:
                text = file.read(FILE_BYTES_MAX + 1)
        except OSError as error:
            raise UsersUnusable(str(self._path), error.strerror or str(error)) from error
        except UnicodeDecodeError:
            raise UsersUnusable(str(self._path), "the file is not UTF-8 text") from None
        try:
            if len(text) > FILE_BYTES_MAX:
                raise ValueError(f"the file has more than {FILE_BYTES_MAX} characters")
            return parse_users(text)
        except ValueError as error:
            raise UsersUnusable(str(self._path), str(error)) from None

    def reload_if_changed(self) -> frozenset[str]:
        """Reads the file again if it has changed. Returns the users that were deleted or have a new password, whose
        connections must be closed; none if the file is unchanged or has an error.

        If the file has an error, the error is logged and the previous content stays in effect.
        """
        try:
            stat = self._path.stat()
            if (stat.st_mtime_ns, stat.st_size, stat.st_ino) == self._stat:
                return frozenset()
            before, self.policy = self.policy, self._read()
        except (OSError, UsersUnusable) as error:
            if self._stat is not None or isinstance(error, UsersUnusable):
                logger.error("users file not reloaded, the previous users stay valid reason=%s", error)
            if isinstance(error, OSError):
                self._stat = None
            return frozenset()
        logger.info("users reloaded file=%s users=%d", self._path, len(self.policy.users))
        return frozenset(name for name, known in before.users.items() if self.policy.users.get(name) != known)
