"""Parses systemd service units: their commands, directory and environment, as far as our units use them."""

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
"""The PATH of systemd's system services (systemd.exec, "Environment Variables in Spawned Processes")."""

Sections = Mapping[str, Mapping[str, tuple[str, ...]]]


class UnitError(Exception):
    """A unit file has an unsupported line or directive. The message is one line."""


@dataclass(frozen=True, slots=True)
class SystemdService:
    """The processes of a service.

    Attributes:
        before: commands that run before the start, in order (ExecStartPre).
        start: the command of the service.
        environment: all environment variables of the processes.
        directory: their working directory.
    """

    before: tuple[tuple[str, ...], ...]
    start: tuple[str, ...]
    environment: Mapping[str, str]
    directory: Path


def parse_sections(text: str) -> Sections:
    """Returns the directives of a unit file by section. A directive may occur more than once.

    Raises:
        UnitError: a line is no comment, section or directive.
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


def parse_service(text: str, home: Path) -> SystemdService:
    """Returns the service of a unit file.

    Args:
        text: the content of the file, already adapted to the paths of this machine.
        home: the home directory of the unit's user. The current user replaces that user.

    Raises:
        UnitError: the unit has a directive or a syntax that is not supported here.
    """
    given = parse_sections(text)["Service"]
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
    return SystemdService(before, _words(start[0]), MappingProxyType(environment), directory)


def _words(line: str) -> tuple[str, ...]:
    if re.match(r"[-@:+!]", line) or re.search(r"[$%\\]", line):
        raise UnitError(f"expected plain words, found {line!r}")
    words: Sequence[str] = shlex.split(line)
    return tuple(words)
