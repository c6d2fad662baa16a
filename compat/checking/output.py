"""Writes the result: standard output in one format, files in others, and failures to standard error."""

from __future__ import annotations

import io
import os
import posixpath
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from headrace.compat.check_result import CompatCheckResult
from headrace.compat.formats import FORMATS, render
from headrace.compat.formats.text import COLOURED, PLAIN, render_text
from headrace.settings import SettingsError

REPOSITORY_RELATIVE_FORMATS = frozenset({"github", "gitlab", "sarif"})
"""Consumers of these formats expect paths relative to the repository, wherever the command ran."""


@dataclass(frozen=True, slots=True)
class Output:
    """An output file and its format."""

    format: str
    path: str


def parse_outputs(texts: Sequence[str]) -> tuple[Output, ...]:
    """Parses the values (`FORMAT=PATH`) of the option `--output`.

    Raises:
        SettingsError: a value is invalid.
    """
    outputs = []
    for text in texts:
        name, equals, path = text.partition("=")
        if name not in FORMATS or not equals or not path:
            raise SettingsError(f"--output: expected FORMAT=PATH with one of {', '.join(FORMATS)}, found {text!r}")
        outputs.append(Output(name, path))
    return tuple(outputs)


def write_outputs(result: CompatCheckResult, outputs: Sequence[Output]) -> None:
    """Writes the result of a run to the output files, each in its format, and creates their directories.

    Raises:
        SettingsError: a file cannot be written.
    """
    for output in outputs:
        path = Path(output.path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # File names need not be valid text; escaping keeps them readable.
            path.write_text(_rendered(output.format, result), encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise SettingsError(f"--output: {output.path} cannot be written: {error.strerror}") from None


def print_result(result: CompatCheckResult, name: str, *, verbose: bool = False, quiet: bool = False) -> None:
    """Prints the result to standard output, and one line per failure to standard error.

    Args:
        name: name of the format; `verbose` and `quiet` apply only to the format `text`.
        verbose: also show suppressed problems, and for each schema the compared versions and the origin of the level.
        quiet: omit compatible schemas without problems and notes.
    """
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


def _rendered(name: str, result: CompatCheckResult) -> str:
    return render(name, _with_repository_paths(result) if name in REPOSITORY_RELATIVE_FORMATS else result)


def _with_repository_paths(result: CompatCheckResult) -> CompatCheckResult:
    """Returns the result with file paths relative to the top of the enclosing git repository; unchanged if there is
    none."""
    directory = Path.cwd()
    top = next((parent for parent in (directory, *directory.parents) if (parent / ".git").exists()), directory)
    location = directory.relative_to(top).as_posix()
    if location == ".":
        return result

    def in_top(file: str) -> str:
        return posixpath.normpath(posixpath.join(location, file))

    return replace(
        result,
        # Deleted schemas are included. The file of a failure may also be the name of a baseline.
        checked=tuple(replace(item, file=in_top(item.file)) for item in result.checked),
        failures=tuple(
            replace(failure, file=in_top(failure.file)) if os.path.lexists(failure.file) else failure
            for failure in result.failures
        ),
    )


def escape_unencodable(stream: TextIO) -> None:
    """Makes a stream escape characters that it cannot encode, such as file names that are not valid text."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")


def supports_colour(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
