"""The users file: who there is and what each may do.

One line each, words separated by blanks, `#` begins a comment:

    user  NAME  VERIFIERS           as `headrace broker user NAME` prints it; see `scram`
    grant NAME  RIGHT  RESOURCE     RIGHT is read, write or admin; RESOURCE is topic:PATTERN, group:PATTERN or *

In a grant the name `*` is every user of the file; in a PATTERN it stands for any text. What no line grants is refused.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from headrace.broker.access.rights import WILDCARD, Grant, Rights
from headrace.broker.access.scram import HASHES, Verifier
from headrace.broker.errors import UsersUnusable

logger = logging.getLogger(__name__)

USERS_MAX: Final = 10_000
LINE_CHARS_MAX: Final = 4096
FILE_BYTES_MAX: Final = 64 * 1024 * 1024
SHAPES: Final = {"user": "user NAME VERIFIERS", "grant": "grant NAME read|write|admin topic:PATTERN|group:PATTERN|*"}

# Followed by a blank or not at all, so that a `#` within a name is one.
_COMMENT = re.compile(r"(^|\s)#.*")
_NAME = re.compile(r"[^\s\x00-\x1f\x7f#*]{1,250}")

Verifiers = Mapping[str, Verifier]
"""Of one user, by mechanism."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A users file, read."""

    users: Mapping[str, Verifiers] = field(repr=False)
    rights: Mapping[str, Rights]


def parse_users(text: str) -> Policy:
    """The policy that a users file states.

    Raises:
        ValueError: a line is none of the kinds, or they contradict each other; hashes are not repeated.
    """
    users: dict[str, Verifiers] = {}
    granted: dict[str, list[Grant]] = {}
    first_line: dict[str, int] = {}
    for number, (kind, name, *rest) in _lines(text):
        try:
            if kind == "user":
                users[_new_name(name, users)] = _verifiers(rest[0])
            else:
                granted.setdefault(name, []).append(Grant.parse(*rest))
                first_line.setdefault(name, number)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    for name, number in first_line.items():
        if name != WILDCARD and name not in users:
            raise ValueError(f"line {number}: no line makes {name} a user")
    if not users:
        # Also what a file looks like between being emptied and being written again.
        raise ValueError("it has no user, so that nobody could do anything")
    everybody = granted.get(WILDCARD, [])
    return Policy(users, {name: Rights((*granted.get(name, ()), *everybody)) for name in users})


def user_line(name: str, verifiers: Verifiers) -> str:
    """The line of a users file that makes a user.

    Raises:
        ValueError: no user can be called so.
    """
    return f"user {_new_name(name, {})} {','.join(map(str, verifiers.values()))}"


def _lines(text: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > LINE_CHARS_MAX:
            raise ValueError(f"line {number}: it is longer than {LINE_CHARS_MAX} characters")
        words = _COMMENT.sub("", line).split()
        if not words:
            continue
        shape = SHAPES.get(words[0])
        if shape is None or len(words) != len(shape.split()):
            raise ValueError(f"line {number}: expected `{'` or `'.join(SHAPES.values())}`")
        yield number, words


def _new_name(name: str, taken: Mapping[str, object]) -> str:
    if _NAME.fullmatch(name) is None:
        raise ValueError("a user's name has no blank, asterisk, number sign or control character")
    if name in taken:
        raise ValueError(f"user {name} is there already")
    if len(taken) >= USERS_MAX:
        raise ValueError(f"there are more than {USERS_MAX} users")
    return name


def _verifiers(text: str) -> Verifiers:
    found = [Verifier.parse(part) for part in text.split(",")]
    by_mechanism = {verifier.mechanism: verifier for verifier in found}
    if len(by_mechanism) != len(HASHES) or len(found) != len(HASHES):
        raise ValueError(f"expected one verifier each of {' and '.join(HASHES)}, with a comma between")
    return by_mechanism


class UsersFile:
    """A users file that may change while the broker runs.

    Raises:
        UsersUnusable: it cannot be read, or has a mistake.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self.policy = self._read()

    def _read(self) -> Policy:
        try:
            found = self._path.stat()
            self._seen = found.st_mtime_ns, found.st_size, found.st_ino
            with self._path.open(encoding="utf-8") as file:
                text = file.read(FILE_BYTES_MAX + 1)
        except OSError as error:
            raise UsersUnusable(str(self._path), error.strerror or str(error)) from error
        except UnicodeDecodeError:
            raise UsersUnusable(str(self._path), "it is not UTF-8 text") from None
        try:
            if len(text) > FILE_BYTES_MAX:
                raise ValueError(f"it has more than {FILE_BYTES_MAX} characters")
            return parse_users(text)
        except ValueError as error:
            raise UsersUnusable(str(self._path), str(error)) from None

    def look(self) -> frozenset[str]:
        """Reads the file again if it has changed; returns who is gone or has another password now.

        A file with a mistake is logged, and changes nothing.
        """
        try:
            found = self._path.stat()
            if (found.st_mtime_ns, found.st_size, found.st_ino) == self._seen:
                return frozenset()
            before, self.policy = self.policy, self._read()
        except (OSError, UsersUnusable) as error:
            if self._seen is not None or isinstance(error, UsersUnusable):
                logger.error("users as before reason=%s", error)
            if isinstance(error, OSError):
                self._seen = None
            return frozenset()
        logger.info("users read file=%s users=%d", self._path, len(self.policy.users))
        return frozenset(name for name, known in before.users.items() if self.policy.users.get(name) != known)
