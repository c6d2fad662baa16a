"""Checksums of files in the form in which commits have them."""

from __future__ import annotations

from headrace.loader.checksum import Checksum


def checksum_of(content: bytes) -> str:
    checksum = Checksum()
    checksum.update(content)
    return str(checksum)
