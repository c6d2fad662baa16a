"""Where an outcome goes: standard output in one format, files in others, what could not be judged to standard error."""

from __future__ import annotations

import io
import os
import posixpath
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from headrace.compat.check_result import CheckResult
from headrace.compat.formats import FORMATS, render
from headrace.compat.formats.text import COLOURED, PLAIN, render_text
from headrace.settings import SettingsError

REPOSITORY_RELATIVE_FORMATS = frozenset({"github", "gitlab", "sarif"})
"""Formats whose files are looked for from the top of the repository, wherever in it the command ran."""


@dataclass(frozen=True, slots=True)
class Output:
    """A file that gets a format."""

    format: str
    path: str


def parse_outputs(texts: Sequence[str]) -> tuple[Output, ...]:
    """`FORMAT=PATH` of each.

    Raises:
        SettingsError: one of them is none.
    """
    outputs = []
    for text in texts:
        name, equals, path = text.partition("=")
        if name not in FORMATS or not equals or not path:
            raise SettingsError(f"--output: expected FORMAT=PATH with one of {', '.join(FORMATS)}, found {text!r}")
        outputs.append(Output(name, path))
    return tuple(outputs)


def write_outputs(result: CheckResult, outputs: Sequence[Output]) -> None:
    """Writes the files, and the directories they lie in.

    Raises:
        SettingsError: one cannot be written.
    """
    for output in outputs:
        path = Path(output.path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # A file name need not be valid text; escaped, it is still there to read.
            path.write_text(_rendered(output.format, result), encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise SettingsError(f"--output: {output.path} cannot be written: {error.strerror}") from None


def print_result(result: CheckResult, name: str, *, verbose: bool = False, quiet: bool = False) -> None:
    """The outcome on standard output, and one line on standard error for each schema that could not be judged."""
    escape_unencodable(sys.stdout)
    escape_unencodable(sys.stderr)
    if name == "text":
        style = COLOURED if supports_colour(sys.stdout) else PLAIN
        text = render_text(result, style, verbose=verbose, quiet=quiet)
    else:
        text = _rendered(name, result)
    sys.stdout.write(text)
    sys.stdout.flush()
    for failure in result.failures:
        print(failure.text(), file=sys.stderr)


def _rendered(name: str, result: CheckResult) -> str:
    return render(name, _with_repository_paths(result) if name in REPOSITORY_RELATIVE_FORMATS else result)


def _with_repository_paths(result: CheckResult) -> CheckResult:
    """The same with files called by their place in the repository, where there is one around the working directory."""
    directory = Path.cwd()
    top = next((above for above in (directory, *directory.parents) if (above / ".git").exists()), directory)
    location = directory.relative_to(top).as_posix()
    if location == ".":
        return result

    def in_top(file: str) -> str:
        return posixpath.normpath(posixpath.join(location, file))

    return replace(
        result,
        # A schema that was deleted has its place too; of a failure it may also be the name of a baseline.
        checked=tuple(replace(item, file=in_top(item.file)) for item in result.checked),
        failures=tuple(
            replace(failure, file=in_top(failure.file)) if os.path.lexists(failure.file) else failure
            for failure in result.failures
        ),
    )


def escape_unencodable(stream: TextIO) -> None:
    """A file name need not be valid text, and not every terminal has every character; neither may end the check."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")


def supports_colour(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
