"""Passwords as a users file keeps them, and the server's part of SCRAM (RFC 5802, RFC 7677).

A password is kept as PostgreSQL writes it, once for each hash function: `SCRAM-SHA-256$<iterations>:<salt>$<stored
key>:<server key>`, in base64. A password is checked with that, in PLAIN too, and it proves the broker to its client;
whoever reads it cannot log in with it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from dataclasses import dataclass, field
from typing import Final

HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
ITERATIONS: Final = 16_384
"""The most that Kafka's own tool writes; some 8 ms of whoever logs in, and of the broker with PLAIN."""
ITERATIONS_MIN: Final = 4096
"""RFC 7677 and Kafka's clients take no fewer."""
ITERATIONS_MAX: Final = 1_000_000
SALT_BYTES: Final = 16
MESSAGE_CHARS_MAX: Final = 4096
NONCE_CHARS_MAX: Final = 512
WRONG: Final = "wrong user or password"
"""The message of every refused login, so that it does not show whether the user exists."""

_FORMAT = re.compile(r"(SCRAM-SHA-(?:256|512))\$(\d{1,7}):([A-Za-z0-9+/=]+)\$([A-Za-z0-9+/=]+):([A-Za-z0-9+/=]+)")
_FIRST = re.compile(r"(n,(?:a=([^,]*))?,)(n=([^,]+),r=([\x21-\x2b\x2d-\x7e]+)(?:,.*)?)")
_FINAL = re.compile(r"(c=([A-Za-z0-9+/=]+),r=([\x21-\x2b\x2d-\x7e]+)(?:,[^,]+)*?),p=([A-Za-z0-9+/=]+)")


class LoginRefused(Exception):
    """The message is for the client, and tells nothing that it did not know."""


@dataclass(frozen=True, slots=True)
class Verifier:
    """What is kept of a password for one mechanism; `str()` is the text for a users file."""

    mechanism: str
    iterations: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    @classmethod
    def of(cls, mechanism: str, password: str, salt: bytes, iterations: int = ITERATIONS) -> Verifier:
        """What is to be kept of a password; `salt` is SALT_BYTES random bytes of its own."""
        name = HASHES[mechanism]
        salted = hashlib.pbkdf2_hmac(name, password.encode("utf-8", "surrogatepass"), salt, iterations)
        stored = hashlib.new(name, hmac.digest(salted, b"Client Key", name)).digest()
        return cls(mechanism, iterations, salt, stored, hmac.digest(salted, b"Server Key", name))

    @classmethod
    def parse(cls, text: str) -> Verifier:
        """
        Raises:
            ValueError: it is none; the message does not repeat it.
        """
        found = _FORMAT.fullmatch(text)
        try:
            if found is None:
                raise ValueError
            salt, stored, server = (base64.b64decode(part, validate=True) for part in found.group(3, 4, 5))
            size = hashlib.new(HASHES[found[1]]).digest_size
            if not salt or len(stored) != size or len(server) != size:
                raise ValueError
        except (ValueError, binascii.Error):
            raise ValueError(
                "expected SCRAM-SHA-256$…:…$…:…, or the same with 512, as `headrace broker user` prints it"
            ) from None
        if not ITERATIONS_MIN <= int(found[2]) <= ITERATIONS_MAX:
            raise ValueError(f"{found[2]} iterations; expected between {ITERATIONS_MIN} and {ITERATIONS_MAX}")
        return cls(found[1], int(found[2]), salt, stored, server)

    def matches(self, password: str) -> bool:
        """Whether it is of this password; takes equally long either way."""
        made = Verifier.of(self.mechanism, password, self.salt, self.iterations)
        return hmac.compare_digest(made.stored_key, self.stored_key)

    def __str__(self) -> str:
        salt, stored, server = (
            base64.b64encode(part).decode() for part in (self.salt, self.stored_key, self.server_key)
        )
        return f"{self.mechanism}${self.iterations}:{salt}${stored}:{server}"


@dataclass(frozen=True, slots=True)
class FirstMessage:
    """What a client begins with: who it says it is, and what is hashed of the message."""

    user: str
    header: str
    bare: str
    nonce: str

    @classmethod
    def parse(cls, raw: bytes) -> FirstMessage:
        """
        Raises:
            LoginRefused: it is no such message, or wants to act for another user.
        """
        found = _FIRST.fullmatch(_text(raw))
        if found is None or len(found[5]) > NONCE_CHARS_MAX:
            raise LoginRefused("expected n,,n=USER,r=NONCE without channel binding")
        user = _user(found[4])
        if found[2] and _user(found[2]) != user:
            raise LoginRefused("nobody acts for another user here")
        if "tokenauth=true" in found[3].split(","):
            raise LoginRefused("there are no delegation tokens here")
        return cls(user, found[1], found[3], found[5])


class Exchange:
    """One login: the client's first message, our challenge, its proof. `nonce` is random text of ours, used once."""

    def __init__(self, first: FirstMessage, verifier: Verifier, nonce: str) -> None:
        self._first, self._verifier = first, verifier
        self._nonce = first.nonce + nonce
        self.user = first.user
        self.challenge = f"r={self._nonce},s={base64.b64encode(verifier.salt).decode()},i={verifier.iterations}"

    def finish(self, raw: bytes) -> bytes:
        """Our answer to the client's last message, which shows it that the broker knows the password too.

        Raises:
            LoginRefused: the client does not know it.
        """
        found = _FINAL.fullmatch(_text(raw))
        name, verifier = HASHES[self._verifier.mechanism], self._verifier
        if found is None:
            raise LoginRefused("expected c=…,r=NONCE,p=PROOF")
        said = f"{self._first.bare},{self.challenge},{found[1]}".encode()
        signature = hmac.digest(verifier.stored_key, said, name)
        try:
            header, proof = base64.b64decode(found[2], validate=True), base64.b64decode(found[4], validate=True)
        except binascii.Error:
            raise LoginRefused("the proof is not base64") from None
        client_key = bytes(one ^ other for one, other in zip(proof, signature, strict=False))
        is_known = hmac.compare_digest(hashlib.new(name, client_key).digest(), verifier.stored_key)
        is_answer = header == self._first.header.encode() and hmac.compare_digest(found[3], self._nonce)
        if not (is_known and is_answer and len(proof) == len(signature)):
            raise LoginRefused(WRONG)
        return b"v=" + base64.b64encode(hmac.digest(verifier.server_key, said, name))


def _text(raw: bytes) -> str:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise LoginRefused("the message is not UTF-8") from None
    if len(text) > MESSAGE_CHARS_MAX:
        raise LoginRefused(f"a message of more than {MESSAGE_CHARS_MAX} characters")
    return text


def _user(name: str) -> str:
    """A name as it is, of one in which commas and equals signs are written as `=2C` and `=3D`."""
    if re.search(r"=(?!2C|3D)", name):
        raise LoginRefused("a user name with an equals sign that is not written as =3D")
    return name.replace("=2C", ",").replace("=3D", "=")
