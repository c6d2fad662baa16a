"""Stored passwords of a users file, and the server side of SCRAM (RFC 5802, RFC 7677).

A password is stored in PostgreSQL's format, once per hash function: `SCRAM-SHA-256$<iterations>:<salt>$<stored
key>:<server key>`, in base64. This text is the verifier of the password. The broker checks passwords against it, also
for PLAIN, and proves its own identity to the client with the server key. A stolen verifier alone does not allow a
login, but weak passwords can be guessed with it.
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
"""Hash iterations of newly stored passwords: the highest count that Kafka's own tool writes. Hashing takes about 8 ms:
on the client with SCRAM, on the broker with PLAIN."""
ITERATIONS_MIN: Final = 4096
"""Fewest iterations that a verifier may have: the minimum of RFC 7677 and of Kafka's clients."""
ITERATIONS_MAX: Final = 1_000_000
SALT_BYTES: Final = 16
MESSAGE_CHARS_MAX: Final = 4096
NONCE_CHARS_MAX: Final = 512
WRONG_CREDENTIALS: Final = "wrong user or password"
"""The message of every login that is refused because of its user or password: it must not reveal whether the user
exists."""

_FORMAT = re.compile(r"(SCRAM-SHA-(?:256|512))\$(\d{1,7}):([A-Za-z0-9+/=]+)\$([A-Za-z0-9+/=]+):([A-Za-z0-9+/=]+)")
_FIRST = re.compile(r"(n,(?:a=([^,]*))?,)(n=([^,]+),r=([\x21-\x2b\x2d-\x7e]+)(?:,.*)?)")
_FINAL = re.compile(r"(c=([A-Za-z0-9+/=]+),r=([\x21-\x2b\x2d-\x7e]+)(?:,[^,]+)*?),p=([A-Za-z0-9+/=]+)")


class LoginRefused(Exception):
    """A login failed. The message goes to the client, so it contains nothing that the client did not know."""


@dataclass(frozen=True, slots=True)
class Verifier:
    """The stored form of one password for one mechanism. `str()` formats it for a users file."""

    mechanism: str
    iterations: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    @classmethod
    def derive(cls, mechanism: str, password: str, salt: bytes, iterations: int = ITERATIONS) -> Verifier:
        """Returns the verifier of a password, computed with `iterations` hash iterations.

        Args:
            mechanism: SCRAM-SHA-256 or SCRAM-SHA-512.
            salt: SALT_BYTES new random bytes.
        """
        name = HASHES[mechanism]
        salted = hashlib.pbkdf2_hmac(name, password.encode("utf-8", "surrogatepass"), salt, iterations)
        stored = hashlib.new(name, hmac.digest(salted, b"Client Key", name)).digest()
        return cls(mechanism, iterations, salt, stored, hmac.digest(salted, b"Server Key", name))

    @classmethod
    def parse(cls, text: str) -> Verifier:
        """Parses a verifier in a users file.

        Raises:
            ValueError: the text is malformed, or its number of iterations is not allowed; the message contains no salt
                and no key.
        """
        match = _FORMAT.fullmatch(text)
        try:
            if match is None:
                raise ValueError
            salt, stored, server = (base64.b64decode(part, validate=True) for part in match.group(3, 4, 5))
            size = hashlib.new(HASHES[match[1]]).digest_size
            if not salt or len(stored) != size or len(server) != size:
                raise ValueError
        except (ValueError, binascii.Error):
            raise ValueError(
                "expected SCRAM-SHA-256$…:…$…:… or SCRAM-SHA-512$…; `headrace broker user` prints both"
            ) from None
        if not ITERATIONS_MIN <= int(match[2]) <= ITERATIONS_MAX:
            raise ValueError(f"the SCRAM verifier has {match[2]} iterations; use {ITERATIONS_MIN} to {ITERATIONS_MAX}")
        return cls(match[1], int(match[2]), salt, stored, server)

    def matches(self, password: str) -> bool:
        """Returns whether this is the password. The comparison takes constant time."""
        derived = Verifier.derive(self.mechanism, password, self.salt, self.iterations)
        return hmac.compare_digest(derived.stored_key, self.stored_key)

    def __str__(self) -> str:
        salt, stored, server = (
            base64.b64encode(part).decode() for part in (self.salt, self.stored_key, self.server_key)
        )
        return f"{self.mechanism}${self.iterations}:{salt}${stored}:{server}"


@dataclass(frozen=True, slots=True)
class ClientFirstMessage:
    """The first message of a SCRAM client: the user name that it claims, and the parts that its proof will sign."""

    user: str
    header: str
    bare: str
    nonce: str

    @classmethod
    def parse(cls, raw: bytes) -> ClientFirstMessage:
        """Parses `raw`, the first message of a SCRAM client (RFC 5802, section 7).

        Raises:
            LoginRefused: the message is malformed, or the client wants to act for another user or has a delegation
                token.
        """
        match = _FIRST.fullmatch(_text(raw))
        if match is None or len(match[5]) > NONCE_CHARS_MAX:
            raise LoginRefused("malformed SCRAM message: expected n,,n=USER,r=NONCE; channel binding is not supported")
        user = _user(match[4])
        if match[2] and _user(match[2]) != user:
            raise LoginRefused("a user cannot act for another user; leave the authorization id empty")
        if "tokenauth=true" in match[3].split(","):
            raise LoginRefused("this broker has no delegation tokens; log in with a user name and a password")
        return cls(user, match[1], match[3], match[5])


class ScramExchange:
    """The server's side of one SCRAM login. `challenge` is the response to the client's first message, and `finish`
    checks the proof in the client's last message.

    Args:
        first: the client's first message.
        verifier: stored form of the user's password.
        nonce: random text of the server, used for one login only.
    """

    def __init__(self, first: ClientFirstMessage, verifier: Verifier, nonce: str) -> None:
        self._first, self._verifier = first, verifier
        self._nonce = first.nonce + nonce
        self.user = first.user
        self.challenge = f"r={self._nonce},s={base64.b64encode(verifier.salt).decode()},i={verifier.iterations}"

    def finish(self, raw: bytes) -> bytes:
        """Checks `raw`, the last message of a SCRAM client, and returns the server's last message, which proves that
        the broker knows the password's verifier.

        Raises:
            LoginRefused: the message is malformed, or the client's proof is wrong.
        """
        match = _FINAL.fullmatch(_text(raw))
        name, verifier = HASHES[self._verifier.mechanism], self._verifier
        if match is None:
            raise LoginRefused("malformed SCRAM message: expected c=…,r=NONCE,p=PROOF")
        auth_message = f"{self._first.bare},{self.challenge},{match[1]}".encode()
        signature = hmac.digest(verifier.stored_key, auth_message, name)
        try:
            header, proof = base64.b64decode(match[2], validate=True), base64.b64decode(match[4], validate=True)
        except binascii.Error:
            raise LoginRefused("the channel binding or the proof in the SCRAM message is not base64") from None
        client_key = bytes(one ^ other for one, other in zip(proof, signature, strict=False))
        is_proof_valid = hmac.compare_digest(hashlib.new(name, client_key).digest(), verifier.stored_key)
        is_message_valid = header == self._first.header.encode() and hmac.compare_digest(match[3], self._nonce)
        if not (is_proof_valid and is_message_valid and len(proof) == len(signature)):
            raise LoginRefused(WRONG_CREDENTIALS)
        return b"v=" + base64.b64encode(hmac.digest(verifier.server_key, auth_message, name))


def _text(raw: bytes) -> str:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise LoginRefused("the SCRAM message is not UTF-8") from None
    if len(text) > MESSAGE_CHARS_MAX:
        raise LoginRefused(f"the SCRAM message has more than {MESSAGE_CHARS_MAX} characters")
    return text


def _user(name: str) -> str:
    """Decodes a SASL user name, in which `=2C` stands for a comma and `=3D` for an equals sign."""
    if re.search(r"=(?!2C|3D)", name):
        raise LoginRefused("the user name contains an unescaped equals sign; send it as =3D")
    return name.replace("=2C", ",").replace("=3D", "=")
