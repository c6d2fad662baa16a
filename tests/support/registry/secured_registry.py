"""A registry with users and TLS, with a certificate of a test authority."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.registry.access.passwords import Cost, PasswordHash
from headrace.registry.access.users import user_line
from support.certificates import Authority

PASSWORD = "open: sesame@home"
GRANTS = ("grant shop write shop-*", "grant shop read *", "grant shop write headrace.audit-value")


def secured_registry(start_service: Any, directory: Path, authority: Authority) -> str:
    """Starts the registry and returns its URL. The user `shop` may read everything and write subjects `shop-*`."""
    line = user_line("shop", PasswordHash.of(PASSWORD, b"some salt", Cost(log2_n=4, r=1, p=1)))
    (directory / "users").write_text("\n".join((line, *GRANTS)) + "\n")
    certificate, key = authority.certificate("server")
    serve = ["registry", "serve", "--data-dir", str(directory), "--registry-listen", "127.0.0.1:0"]
    environment = {
        "HEADRACE__REGISTRY__USERS": str(directory / "users"),
        "HEADRACE__REGISTRY__TLS_CERTIFICATE": str(certificate),
        "HEADRACE__REGISTRY__TLS_KEY": str(key),
    }
    url = str(start_service("headrace", *serve, environment=environment).addresses["registry"])
    assert url.startswith("https://")
    return url
