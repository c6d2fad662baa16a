"""Guesses the producer's mistake from the first bytes of a message that could not be loaded."""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from typing import Final

from headrace.loader.project.quarantine import QuarantineCode

FRAME_BYTES: Final = 5  # the magic byte and the schema id
HEAD_BYTES: Final = 256

SIGNATURES: Final[Mapping[bytes, str]] = {
    b"Obj\x01": "an Avro container file: this producer sends files instead of messages",
    b"\xc3\x01": "Avro's single-object encoding: this producer has a serializer without a registry",
    b"\xac\xed\x00\x05": "Java serialization: this producer has no Avro serializer",
    b"\x1f\x8b": "gzip: this producer compresses values itself",
    b"\x28\xb5\x2f\xfd": "zstd: this producer compresses values itself",
    b"\x04\x22\x4d\x18": "lz4: this producer compresses values itself",
    b"PAR1": "a Parquet file: this producer sends files instead of messages",
}
"""The format and the producer's mistake, by the first bytes of a value."""

_JSON: Final = re.compile(rb'\s*(\{\s*("|\})|\[\s*([\[{"\]0-9tfn-]))')
_XML: Final = re.compile(rb"\s*<[?!A-Za-z]")


def producer_hint(value: bytes | None, code: str) -> str:
    """Returns a sentence with the format of a value that is not Avro and the producer's mistake; "" if it is not
    recognized.

    Args:
        code: the code of the reason for which the message was quarantined.
    """
    if code == QuarantineCode.CORRUPT_BATCH or value is None:
        return ""
    if not value:
        return "an empty value, which is no tombstone: a tombstone has a null value"
    if value[0] == 0 and len(value) >= FRAME_BYTES:
        return _hint_after_schema_id(value[FRAME_BYTES : FRAME_BYTES + HEAD_BYTES], code)
    head = value[:HEAD_BYTES]
    signature = next((hint for start, hint in SIGNATURES.items() if head.startswith(start)), "")
    text = _text(head)
    return signature or (f"{text}: this producer has no Avro serializer" if text else "")


def _hint_after_schema_id(body: bytes, code: str) -> str:
    text = _text(body)
    if text in ("JSON", "XML"):
        return f"{text} behind a schema id: this producer's serializer writes another format than Avro"
    if code == QuarantineCode.SCHEMA_NOT_FOUND:
        return "a schema id of another registry: this producer registers its schemas elsewhere"
    return ""


def _text(head: bytes) -> str:
    if _JSON.match(head):
        return "JSON"
    if _XML.match(head):
        return "XML"
    try:
        # The last character may have been truncated.
        text = codecs.getincrementaldecoder("utf-8")().decode(head, final=len(head) < HEAD_BYTES)
    except UnicodeDecodeError:
        return ""
    return "text" if text and all(one.isprintable() or one.isspace() for one in text) else ""
