"""Posts batches to one URL."""

from __future__ import annotations

import time
from typing import Final
from urllib.parse import urlsplit

import requests

from headrace.gateway.webhooks.outcome import Outcome
from headrace.gateway.webhooks.signature import signed_headers
from headrace.gateway.webhooks.webhook import Webhook
from headrace.version import VERSION

REASON_CHARS_MAX: Final = 300


class WebhookPost:
    """The connection to the URL of a webhook. Used by one thread at a time."""

    def __init__(self, webhook: Webhook) -> None:
        self._url = webhook.url
        self._timeout_s = webhook.timeout.seconds
        self._key = webhook.key
        self._session = requests.Session()
        self._session.headers.update({"Content-Type": "application/json", "User-Agent": f"headrace/{VERSION}"})

    def __call__(self, message_id: str, body: bytes) -> Outcome:
        """Posts a body. Redirects are not followed: they would change the method, or lead past the settings."""
        headers = signed_headers(self._key, message_id, int(time.time()), body)
        try:
            with self._session.post(
                self._url, body, headers=headers, timeout=self._timeout_s, allow_redirects=False, stream=True
            ) as response:
                beginning = next(response.iter_content(REASON_CHARS_MAX), b"")
                return Outcome(response.status_code, _reason(response, beginning), _retry_after_s(response))
        except requests.Timeout:
            return Outcome(0, f"no response within {self._timeout_s:g} s")
        except requests.RequestException as error:
            return Outcome(0, f"{urlsplit(self._url).hostname} does not respond ({type(error).__name__})")

    def close(self) -> None:
        self._session.close()


def _reason(response: requests.Response, beginning: bytes) -> str:
    words = " ".join(beginning.decode("utf-8", "replace").split())
    printable = "".join(character if character.isprintable() else "?" for character in words)
    return f"HTTP {response.status_code}" + (f": {printable}" if printable else "")


def _retry_after_s(response: requests.Response) -> float:
    text = response.headers.get("Retry-After", "")
    return float(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0.0
