"""Services of systemd as far as ours go: what a unit file starts, where, and with which environment."""

from __future__ import annotations

import getpass
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

SECTION = re.compile(r"\[(\w+)\]")
DIRECTIVE = re.compile(r"([A-Z]\w*)=(.*)")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"
"""What systemd gives to the services of a system (systemd.exec, "Environment Variables in Spawned Processes")."""

Sections = Mapping[str, Mapping[str, tuple[str, ...]]]


class UnitError(Exception):
    """A unit file has something that is not understood here; the message is one line."""


@dataclass(frozen=True, slots=True)
class Service:
    """What one service starts: each command of `before`, then `start`, in `directory`, with `environment` and nothing
    else of it."""

    before: tuple[tuple[str, ...], ...]
    start: tuple[str, ...]
    environment: Mapping[str, str]
    directory: Path


def sections_of(text: str) -> Sections:
    """The directives of a unit file, by section; one may be given more than once.

    Raises:
        UnitError: a line is none of comment, section and directive.
    """
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    section: dict[str, tuple[str, ...]] | None = None
    for line in text.splitlines():
        if not line or line[0] in "#;":
            continue
        if header := SECTION.fullmatch(line):
            section = found.setdefault(header[1], {})
        elif section is not None and (directive := DIRECTIVE.fullmatch(line)) and not line.endswith("\\"):
            section[directive[1]] = (*section.get(directive[1], ()), directive[2])
        else:
            raise UnitError(f"expected a section or a directive, found {line!r}")
    return found


def service_of(text: str, home: Path) -> Service:
    """The service of a unit file.

    Args:
        text: of the file, whose paths are those of this machine already.
        home: the home directory of the user of the unit, for which whoever runs this stands.

    Raises:
        UnitError: it has something that this does not do as systemd does.
    """
    given = sections_of(text)["Service"]
    if others := {name for name in given if name in ("EnvironmentFile", "PassEnvironment", "UnsetEnvironment")}:
        raise UnitError(f"expected the environment in lines Environment=, found {', '.join(sorted(others))}")
    start = given.get("ExecStart", ())
    if len(start) != 1:
        raise UnitError(f"expected one ExecStart, found {len(start)}")
    user = getpass.getuser()
    environment = {"PATH": PATH, "HOME": str(home), "USER": user, "LOGNAME": user, "SHELL": "/bin/sh"}
    for line in given.get("Environment", ()):
        environment |= dict(word.split("=", 1) for word in _words(line))
    directory = Path(given.get("WorkingDirectory", ("/",))[-1])
    before = tuple(_words(line) for line in given.get("ExecStartPre", ()))
    return Service(before, _words(start[0]), MappingProxyType(environment), directory)


def _words(line: str) -> tuple[str, ...]:
    if re.match(r"[-@:+!]", line) or re.search(r"[$%\\]", line):
        raise UnitError(f"expected plain words, found {line!r}")
    words: Sequence[str] = shlex.split(line)
    return tuple(words)
