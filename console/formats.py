"""Text forms of times, durations and numbers in pages. Pure functions, also filters of the templates."""

from __future__ import annotations

import codecs
import re
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any, Final

UNKNOWN: Final = "–"
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400
_NUMBER: Final = re.compile(r"[0-9]{1,18}")
YEAR_MS: Final = 365 * DAY_S * 1000
# Controls, bidirectional controls and other invisible characters, and halves of surrogate pairs.
_INVISIBLE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


def visible(value: Any) -> Any:
    """Returns a text with invisible characters as escapes such as `\\u202e`, so that it cannot be displayed as another
    one. Other values stay as they are."""
    if type(value) is not str or value.isprintable():
        return value
    return _INVISIBLE.sub(lambda found: f"\\u{ord(found[0]):04x}", value)


def utc(ms: int | None, form: str = "%Y-%m-%d %H:%M") -> str:
    """Returns a time of the milliseconds since 1970, in UTC."""
    if ms is None:
        return UNKNOWN
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime(form)
    except (ValueError, OverflowError, OSError):  # the year 10000 and later
        return f"{ms} ms"


def iso(ms: int) -> str:
    """Returns a time as `2026-01-31T12:00:00Z`, for programs and for the attribute `datetime`."""
    return utc(ms, "%Y-%m-%dT%H:%M:%SZ")


def clock(ms: int | None, now_ms: int) -> str:
    """Returns a time in the shortest form that is clear at the time `now_ms`: without the date on the same day, without
    the year within a year."""
    if ms is None:
        return UNKNOWN
    if utc(ms, "%Y%m%d") == utc(now_ms, "%Y%m%d"):
        return utc(ms, "%H:%M")
    return utc(ms, "%b %d, %H:%M" if abs(now_ms - ms) < YEAR_MS else "%Y-%m-%d %H:%M")


def span(ms: int | None) -> str:
    """Returns a duration in the two largest units: `3 d 4 h`, `12 min`, `8 s`."""
    if ms is None:
        return UNKNOWN
    seconds = ms // 1000
    for unit_s, unit, smaller_s, smaller in ((DAY_S, "d", HOUR_S, "h"), (HOUR_S, "h", MINUTE_S, "min")):
        if seconds >= unit_s:
            rest = seconds % unit_s // smaller_s
            return f"{seconds // unit_s} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{seconds // MINUTE_S} min" if seconds >= MINUTE_S else f"{seconds} s"


def number(value: float | None) -> str:
    """Returns a number with separators of thousands."""
    if value is None:
        return UNKNOWN
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
    return text.replace("-", "−")


def size(count: int | None) -> str:
    """Returns a number of bytes in the largest decimal unit: `1.5 MB`."""
    if count is None:
        return UNKNOWN
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def sentence(text: str, names: Collection[str] = ()) -> str:
    """Returns the text as a sentence: with a full stop, and with a capital unless it begins with one of `names`."""
    stripped = text.strip()
    if not stripped:
        return ""
    first = stripped[0] if stripped.startswith(tuple(names)) else stripped[0].upper()
    return first + stripped[1:] + ("" if stripped[-1] in ".!?:;…" else ".")


def plural(count: int, word: str, words: str = "") -> str:
    """Returns `1 topic`, `2 topics`; `words` is an irregular plural."""
    return f"{count:,} {word if count == 1 else words or word + 's'}"


def bytes_text(data: bytes, bytes_max: int) -> str:
    """Returns bytes as text if they are UTF-8 without a zero byte, else in hexadecimal, with the length if they are
    longer than `bytes_max`."""
    shown = data[:bytes_max]
    more = f" … ({len(data):,} bytes)" if len(data) > bytes_max else ""
    try:
        # Drops an incomplete character at the end.
        text = codecs.getincrementaldecoder("utf-8")().decode(shown, final=not more)
    except UnicodeDecodeError:
        return f"0x{shown.hex()}{more}"
    # A message in the wire format begins with a zero byte. It is not text, even if all its bytes decode.
    return f"0x{shown.hex()}{more}" if "\0" in text else f"{text}{more}"


def parse_offset(text: str) -> int:
    """Parses an offset, or another number from 0 on.

    Raises:
        ValueError: with a sentence for the page.
    """
    if not _NUMBER.fullmatch(text):
        raise ValueError("An offset is a whole number from 0 on.")
    return int(text)


def parse_time(text: str) -> int:
    """Parses milliseconds since 1970, or a time such as `2026-01-31 12:00`, in UTC unless it has an offset.

    Raises:
        ValueError: with a sentence for the page.
    """
    if _NUMBER.fullmatch(text):
        return int(text)
    try:
        found = datetime.fromisoformat(text)
        return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise ValueError("A time is like 2026-01-31 12:00 in UTC, or in milliseconds since 1970.") from error
