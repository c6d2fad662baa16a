"""Names of tables and directories, and quoting of identifiers and literals in HiveQL."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection

TABLE_NAME_CHARS_MAX = 120
"""Longest table name. Old metastores store 128 characters; the rest is reserved for the suffix of a view (`_latest`)
and for suffixes that users add to copies."""

COLUMN_NAME_CHARS_MAX = 767  # COLUMNS_V2.COLUMN_NAME
PROBE_PREFIX = "headrace_probe_"
REPLACEMENT_PREFIX = "headrace_new_"
RESERVED_PREFIXES = (PROBE_PREFIX, REPLACEMENT_PREFIX)
"""Prefixes of tables that Headrace creates for itself; a topic with such a name gets a hash in its table name."""

HASH_DIGITS = 8

_RESERVED = """
    all alter and anti array as authorization between bigint binary boolean both by cache case cast char character
    check collate column commit conf constraint create cross cube current current_date current_timestamp cursor
    database date day dayofweek dec decimal delete describe distinct div double drop else end escape except exchange
    exists extended external extract false fetch filter first float floor following for foreign from full function
    grant group grouping having hour if import in inner insert int integer intersect interval into is join lateral
    leading left less like local macro map merge minus minute month more natural no none not null nullif numeric of
    offset on only or order out outer over overlaps partialscan partition percent preceding precision preserve primary
    procedure range reads real reduce references regexp revoke right rlike rollback rollup row rows second select
    semi session_user set smallint some start struct sync table tablesample then time timestamp to trailing
    transaction transform trigger true truncate unbounded union unique uniquejoin unknown update user using
    values varchar view views when where window with within without year
    """
RESERVED_WORDS = frozenset(_RESERVED.split())
"""Reserved words of Hive or ANSI Spark; as a column or table name they must be quoted with back-ticks."""

_NOT_TABLE = re.compile(r"[^a-z0-9_]")
_NOT_DIRECTORY = re.compile(r"[^A-Za-z0-9.\-_]")

_ESCAPES = {
    "\\": "\\\\",
    "'": "\\'",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\0": "\\0",
    # Script runners may split at a semicolon inside quotes.
    ";": "\\u003B",
}


def table_name(topic: str, used_names: Collection[str] = ()) -> str:
    """Returns the table name of a topic: the lower-cased name with every character except `[a-z0-9_]` replaced by `_`.

    A hash of the topic is appended if that name is in `used_names` (names of other topics' tables), begins with one of
    `RESERVED_PREFIXES` or is too long. The result depends on `used_names`, so the caller chooses it once and stores it.

    Raises:
        ValueError: `used_names` has all names derived from the topic.
    """
    name = _NOT_TABLE.sub("_", topic.lower())
    if name not in used_names and len(name) <= TABLE_NAME_CHARS_MAX and not name.startswith(RESERVED_PREFIXES):
        return name
    digest = hashlib.sha256(topic.encode()).hexdigest()
    stem = f"topic_{name}" if name.startswith(RESERVED_PREFIXES) else name
    for digits in range(HASH_DIGITS, len(digest) + 1, HASH_DIGITS):
        hashed = f"{stem[: TABLE_NAME_CHARS_MAX - digits - 1]}_{digest[:digits]}"
        if hashed not in used_names:
            return hashed
    raise ValueError(f"topic {topic}: other topics have tables with all names derived from its name")


def directory_name(topic: str) -> str:
    """Returns the directory of a topic in the warehouse: the topic's name with all other characters than ASCII letters,
    digits, `.`, `-` and `_` percent-encoded.

    A `.` or `_` at the start is encoded too, because Hadoop readers ignore such directories, and a `_` at the end.
    Different topics get different directories.
    """
    encoded = _NOT_DIRECTORY.sub(lambda match: _percent(match[0]), topic)
    encoded = re.sub(r"^[._]", lambda match: _percent(match[0]), encoded)
    return re.sub(r"_$", lambda match: _percent(match[0]), encoded)


def is_reserved_word(name: str) -> bool:
    return name.lower() in RESERVED_WORDS


def quote_identifier(name: str) -> str:
    """Quotes a name with back-ticks for Hive and Spark."""
    return "`" + name.replace("`", "``") + "`"


def quote_literal(text: str) -> str:
    """Returns a HiveQL string literal of exactly this text.

    Hive and Spark unescape backslashes inside quotes. Before parsing they replace `${name}` anywhere in the statement
    by a session or environment variable; writing the dollar sign as an escape prevents that.
    """
    escaped = "".join(_ESCAPES.get(character, character) for character in text)
    return "'" + escaped.replace("${", "\\u0024{") + "'"


def _percent(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode())
