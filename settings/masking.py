"""Masks secrets of settings in `headrace config`, in `repr` and in error messages. In doubt a value is masked.

Headrace's own secret keys are listed here or contain one of the `OWN_WORDS`. Spark accepts thousands of properties, in
any letter case and for any storage or server, so a Spark property is secret if its name contains certain words. Spark
(`spark.redaction.regex`) and Hadoop (`hadoop.security.sensitive-config-keys`) recognise their secrets in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MASK = "***"
URL_KEYS = frozenset(
    {
        "alerts.alertmanager_url",
        "audit.database_url",
        "console.database_url",
        "registry.database_url",
        "registry.url",
    }
)
"""Keys of URLs that may contain a password. `mask_value` masks only the passwords in a value with `://`, and any other
value completely."""
TOKEN_URL_KEYS = frozenset({"alerts.webhook_urls", "alerts.notify"})
"""Keys of URLs in which the path, or for services of Apprise also the host, may be a token. `mask_value` shows only the
scheme of each."""
SECRET_KEYS = frozenset({"gateway.webhooks", "registry.client_token"})
"""Further secret keys of Headrace: their names contain none of the `OWN_WORDS`. URLs of webhooks may contain tokens.
Other names of files and issuers, such as `client_token_file`, are not secret."""
OWN_WORDS = ("password", "secret")
WORDS = (
    *OWN_WORDS,
    *("passwd", "passphrase", "passcode", "token", "credential"),
    *("accesskey", "accountkey", "apikey", "encryptionkey", "privatekey"),
)
"""Words that make a `spark` key secret, anywhere in it and with any separator: `access.key`, `accessKey`,
`ACCESS_KEY`.
"""
PARTS = frozenset({"key", "pass", "pwd", "sas"})
"""Words that make a key secret only as a complete part of it: `sasl.enabled` and `bypass` are not secret. A `spark` key
that ends with `key` is secret too."""

_USER_AND_PASSWORD = re.compile(r"//([^:/@]*):.*@", re.DOTALL)  # the password may contain an unescaped `@` or `/`
# `name=value` in a JDBC URL (`…?password=x&user=y`) or in JVM options (`-Djavax.net.ssl.trustStorePassword=x`). A value
# ends at a blank or before the next `&name=` or `;name=`.
_ASSIGNMENT = re.compile(r"""([\w.-]+)=((?:"[^"]*"|'[^']*'|(?![&;][\w.-]+=)\S)+)""")


def is_secret(key: str) -> bool:
    """Returns whether the value of this key (`<section>.<key>`) is a secret, or a URL that may contain a password."""
    section, _, name = key.partition(".")
    if section != "spark":
        return key in URL_KEYS | TOKEN_URL_KEYS | SECRET_KEYS or any(word in name for word in OWN_WORDS)
    lower = name.lower()
    joined = re.sub("[^a-z0-9]", "", lower)
    return (
        joined.endswith("key")
        or any(word in joined for word in WORDS)
        or not PARTS.isdisjoint(re.split("[^a-z0-9]+", lower))
    )


def mask_value(key: str, value: Any) -> str:
    """Returns the value of a key as text with secrets masked; "" for an empty value."""
    text = _text(value)
    if text and key in TOKEN_URL_KEYS:
        return ",".join(f"{scheme}://{MASK}" if mark else MASK for scheme, mark, _ in _partitioned(text))
    if text and is_secret(key) and not (key in URL_KEYS and "://" in text):
        return MASK
    return mask_passwords(text)


def mask_repr(key: str, value: Any) -> str:
    """Returns the `repr` of an invalid value of the setting `key`, for an error message, with secrets masked."""
    return MASK if is_secret(key) else mask_passwords(repr(value))


def mask_passwords(text: str) -> str:
    """Returns the text with secrets masked: passwords in URLs, and values of assignments such as `password=…`."""
    parts = re.split(r",(?=\w+://)", text)
    urls = ",".join(_USER_AND_PASSWORD.sub(rf"//\1:{MASK}@", part) for part in parts)
    return _ASSIGNMENT.sub(lambda match: f"{match[1]}={MASK if is_secret(f'spark.{match[1]}') else match[2]}", urls)


def _partitioned(urls: str) -> list[tuple[str, str, str]]:
    return [url.partition("://") for url in urls.split(",")]


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(str(item) for item in value)
    return str(value) if value or not isinstance(value, Mapping) else ""
