"""What people are shown of settings, in `headrace config`, in `repr` and in messages about a value that is wrong.

Rather too much is hidden than too little. Our own keys are known; Spark takes thousands, of whatever storage and server
there is and in any case, so theirs are told by their words, as Spark (`spark.redaction.regex`) and Hadoop
(`hadoop.security.sensitive-config-keys`) tell their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"
URL_KEYS = frozenset({"registry.database_url", "registry.url"})
"""Keys of URLs that may hold a password: shown without it."""
SECRET_KEYS = frozenset({"registry.client_token"})
"""Keys of our own that are secrets, besides those that say so in their name. A file's or an issuer's name is none."""
OWN_WORDS = ("password", "secret")
WORDS = (
    *OWN_WORDS,
    *("passwd", "passphrase", "passcode", "token", "credential"),
    *("accesskey", "accountkey", "apikey", "encryptionkey", "privatekey"),
)
"""Anywhere in a key of `spark`, whatever stands between their parts: `access.key`, `accessKey`, `ACCESS_KEY`."""
PARTS = frozenset({"key", "pass", "pwd", "sas"})
"""Too short to look for but between dots: `sasl.enabled` and `bypass` are no secrets."""

_USER_AND_PASSWORD = re.compile(r"//([^:/@]*):.*@", re.DOTALL)  # also where a password has an unescaped `@` or `/`
# `…?password=x&user=y` of a JDBC URL or `-Djavax.net.ssl.trustStorePassword=x`, to a blank or to what is given next.
_GIVEN = re.compile(r"""([\w.-]+)=((?:"[^"]*"|'[^']*'|(?![&;][\w.-]+=)\S)+)""")


def is_secret(key: str) -> bool:
    """Whether nothing of the value of this key, `<section>.<key>`, is shown, or no more than a URL without its
    password."""
    section, _, name = key.partition(".")
    if section != "spark":
        return key in URL_KEYS | SECRET_KEYS or any(word in name for word in OWN_WORDS)
    lower = name.lower()
    joined = re.sub("[^a-z0-9]", "", lower)
    return (
        joined.endswith("key")
        or any(word in joined for word in WORDS)
        or not PARTS.isdisjoint(re.split("[^a-z0-9]+", lower))
    )


def masked(key: str, value: Any) -> str:
    """The value of a key as text for people; "" where there is none."""
    text = _text(value)
    if text and is_secret(key) and not (key in URL_KEYS and "://" in text):
        return HIDDEN
    return mask_passwords(text)


def mask_repr(key: str, value: Any) -> str:
    """A value that is wrong, for a message that says so."""
    return HIDDEN if is_secret(key) else mask_passwords(repr(value))


def mask_passwords(text: str) -> str:
    """Text with the passwords of its URLs hidden, and what is given to a name that speaks of secrets."""
    parts = re.split(r",(?=\w+://)", text)
    urls = ",".join(_USER_AND_PASSWORD.sub(rf"//\1:{HIDDEN}@", part) for part in parts)
    return _GIVEN.sub(lambda given: f"{given[1]}={HIDDEN if is_secret(f'spark.{given[1]}') else given[2]}", urls)


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(str(item) for item in value)
    return str(value) if value or not isinstance(value, Mapping) else ""
