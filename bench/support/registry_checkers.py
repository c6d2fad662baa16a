"""Clients that have one schema checked repeatedly: `registry_checkers.py URL CLIENTS`.

The request body is read from standard input. Each client has its own address in 127.0.0.0/8, since a registry without
users distinguishes clients by address.
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
        # A different schema each time, since the registry caches results.
        request_body = body.replace(b"{n}", f"{address}/{number}".encode())
        try:
            connection.request(
                "POST", "/compatibility/subjects/large/versions", request_body, {"Content-Type": CONTENT_TYPE}
            )
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            pass  # a hostile client ignores errors
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
