"""A simple client of transactions, as the documentation describes one."""

from __future__ import annotations

import http.client
import json
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from support.session_client import request

LINES = "text/plain"
WAIT_S = 120.0
PAUSE_S = 0.05


class TransactionClient:
    """Stores a chunk exactly once, whatever happens to the gateways.

    Args:
        urls: gateways; it sends each request to the next one, as through a balancer.
        topic: the topic.
        on_commit: called before each request to commit, with the gateway that has the chunk.
    """

    def __init__(self, urls: Sequence[str], topic: str, on_commit: Callable[[str], None] = lambda url: None) -> None:
        self._urls = list(urls)
        self._topic = topic
        self._on_commit = on_commit
        self.sent: list[tuple[str, int]] = []
        """Path and status of each response; 0 without one."""
        self.repeated = 0
        """How many requests to commit were answered after an earlier one had no response."""

    def write(self, body: bytes) -> Any:
        """Writes a chunk of lines; returns the response to its commit."""
        length, checksum = len(body), f"crc32={zlib.crc32(body):08x}"
        deadline, transaction_id, step, owner = time.monotonic() + WAIT_S, "", "store", ""
        while time.monotonic() < deadline:
            if step == "store":
                query = f"?topic={self._topic}" + (f"&transaction_id={transaction_id}" if transaction_id else "")
                status, found = self._post(f"/v1/store{query}", body, LINES)
                if status == 200:
                    transaction_id, owner, step = found["transaction_id"], found["url"], "commit_request"
            elif step == "commit_request":
                wanted = {"transaction_id": transaction_id, "length": length, "checksum": checksum}
                status, found = self._post("/v1/commit_request", json.dumps(wanted).encode(), "application/json")
                step = {200: "commit", 404: "store", 410: "store"}.get(status, step)
            else:
                self._on_commit(owner)
                content = json.dumps({"transaction_id": transaction_id}).encode()
                status, found = self._post("/v1/commit", content, "application/json")
                if status == 200:
                    self.repeated += self.sent[-2] == ("/v1/commit", 0)
                    return found
                step = {404: "store", 410: "store", 409: "commit_request"}.get(status, step)
            assert status in (0, 200, 404, 409, 410, 503), (status, found)
            time.sleep(0 if status in (200, 404) else PAUSE_S)
        raise AssertionError(f"no commit in {WAIT_S} s: {self.sent[-20:]}")

    def _post(self, path: str, body: bytes, content_type: str) -> tuple[int, Any]:
        """Sends a request to the next gateway, follows redirections; returns status 0 if there is no response."""
        self._urls.append(self._urls.pop(0))
        url = self._urls[0] + path
        status, found = 0, None
        try:
            for _ in range(3):
                status, headers, found = request(url, "POST", body, content_type)
                if status != 307:
                    break
                url = headers["location"]
        except (OSError, http.client.HTTPException, json.JSONDecodeError):
            status = 0
        status = 503 if status == 307 else status
        self.sent.append((path.partition("?")[0], status))
        return status, found
