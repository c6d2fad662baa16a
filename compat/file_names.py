"""File names of subjects. A subject is percent-encoded, so that its file name is valid on every system, and decoded
again when the subject is derived from the file's path.

A long subject gets nested directories. All parts of its name but the last end in `%_`, which percent-encoding never
produces: `aaa…%_/bbb….avsc` is the file of the subject `aaa…bbb…`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from urllib.parse import quote, unquote_to_bytes

SUBJECT_CHARS = " !#$&'()+,;=@[]^_`{}~-."
"""Characters besides ASCII letters and digits that are not percent-encoded in a file name derived from a subject."""

DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)
"""Device names on Windows, with any suffix; not usable as file names."""

PART_CHARS_MAX = 240
"""Longest part of a subject in one file name, encoded. File systems allow 255 bytes, which include the suffix and the
additional escapes of the first and last character."""

CONTINUATION = "%_"
EMPTY_SUBJECT_NAME = "%"


def subject_file_name(subject: str, *, encodes_letters: bool = False) -> str:
    """Returns the path of a subject's file or directory, without suffix.

    The path is valid on every system: not hidden, without characters that Windows removes, and with a slash only
    between the parts of a long subject.

    Args:
        encodes_letters: also encode ASCII letters, for subjects that differ only in case.
    """
    parts = [_part(letters) for letters in _split([_encoded(letter, encodes_letters) for letter in subject])]
    return f"{CONTINUATION}/".join(parts) or EMPTY_SUBJECT_NAME


def decode_subject(parts: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Returns the subject that the last of the parts of a path contains, and the parts of its parent directory. The
    suffix must have been removed from the last part. A part that is not percent-encoded UTF-8 is returned unchanged."""
    if not parts:
        return "", parts
    start = len(parts) - 1
    while start > 0 and parts[start - 1].endswith(CONTINUATION):
        start -= 1
    words = [part.removesuffix(CONTINUATION) for part in parts[start:-1]]
    return "".join(_decoded(word) for word in (*words, parts[-1])), parts[:start]


def _encoded(letter: str, encodes_letters: bool) -> str:
    if encodes_letters and letter.isascii() and letter.isalpha():
        return f"%{ord(letter):02X}"
    return quote(letter, safe=SUBJECT_CHARS, errors="replace")


def _split(letters: Sequence[str]) -> Iterator[list[str]]:
    """Yields the encoded characters of a subject in groups of at most `PART_CHARS_MAX` characters."""
    group: list[str] = []
    length = 0
    for letter in letters:
        if length + len(letter) > PART_CHARS_MAX:
            yield group
            group, length = [], 0
        group.append(letter)
        length += len(letter)
    if group:
        yield group


def _part(letters: Sequence[str]) -> str:
    """Joins encoded characters to a file name. Also encodes a dot or space at its start or end, and the first letter of
    a device name."""
    name = "".join(letters)
    encoded = {at for at in (0, len(name) - 1) if name[at] in ". "}
    if DEVICES.match(name):
        encoded.add(0)
    return "".join(f"%{ord(letter):02X}" if at in encoded else letter for at, letter in enumerate(name))


def _decoded(part: str) -> str:
    if "%" not in part:
        return part
    if part == EMPTY_SUBJECT_NAME:
        return ""
    try:
        return unquote_to_bytes(part).decode()
    except UnicodeError:  # also of a name that is not UTF-8 itself
        return part
