"""Clients that do nothing but have one schema checked, again and again: `registry_checkers.py URL CLIENTS`.

The body is read from standard input.

Each has an address of its own, as far as 127.0.0.0/8 goes, since a registry without users tells clients apart by it.
"""

from __future__ import annotations

import http.client
import itertools
import sys
import threading
from urllib.parse import urlsplit

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"


def check_for_ever(host: str, port: int, address: str, body: bytes) -> None:
    for number in itertools.count():
        connection = http.client.HTTPConnection(host, port, timeout=120, source_address=(address, 0))
        # Another one each time, since what was answered once is kept.
        asked = body.replace(b"{n}", f"{address}/{number}".encode())
        try:
            connection.request("POST", "/compatibility/subjects/large/versions", asked, {"Content-Type": CONTENT_TYPE})
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            pass  # a hostile client is not put off
        finally:
            connection.close()


def main() -> None:
    parts = urlsplit(sys.argv[1])
    body = sys.stdin.buffer.read()
    threads = [
        threading.Thread(target=check_for_ever, args=(parts.hostname, parts.port, f"127.0.1.{number}", body))
        for number in range(1, int(sys.argv[2]) + 1)
    ]
    for thread in threads:
        thread.start()


if __name__ == "__main__":
    main()
