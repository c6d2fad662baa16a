"""Signs requests by the Standard Webhooks specification, version 1 (https://www.standardwebhooks.com), for which
libraries exist in many languages."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from pathlib import Path
from typing import Final

PREFIX: Final = "whsec_"
BYTES_MIN: Final = 24
BYTES_MAX: Final = 64


class BadSecret(ValueError):
    """A file of a secret cannot be used. The message is a phrase without the secret."""


def read_secret(path: Path) -> bytes:
    """Reads the key of signatures: `whsec_` and 24 to 64 bytes in base64.

    Raises:
        BadSecret: the file cannot be read, or has another form.
    """
    try:
        text = path.read_text(encoding="ascii").strip()
        key = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except OSError as error:
        raise BadSecret(error.strerror or str(error)) from None
    except (UnicodeDecodeError, binascii.Error):
        key = b""
    if not BYTES_MIN <= len(key) <= BYTES_MAX:
        raise BadSecret(f"expected {PREFIX} and {BYTES_MIN} to {BYTES_MAX} bytes in base64")
    return key


def signed_headers(key: bytes | None, message_id: str, time_s: int, body: bytes) -> dict[str, str]:
    """Returns the headers of a request.

    Args:
        key: the key of the signature; None leaves the signature out.
        message_id: the same for each attempt.
        time_s: the time of the attempt, in seconds since 1970.
        body: the body.
    """
    headers = {"webhook-id": message_id, "webhook-timestamp": str(time_s)}
    if key is not None:
        signed = b".".join((message_id.encode(), str(time_s).encode(), body))
        digest = hmac.new(key, signed, hashlib.sha256).digest()
        headers["webhook-signature"] = f"v1,{base64.b64encode(digest).decode()}"
    return headers
