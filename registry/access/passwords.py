"""Password hashes: scrypt (RFC 7914) from the standard library, written `$scrypt$ln=14,r=8,p=5$salt$hash`.

This is the PHC string format, which passlib and others also write. Salt and hash are base64 without padding.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from dataclasses import dataclass, field
from typing import Final

PASSWORD_BYTES_MAX: Final = 1024  # longer ones are rejected, because any client can make the server hash them
SALT_BYTES: Final = 16
HASH_BYTES: Final = 32
MEMORY_BYTES_MAX: Final = 256 * 1024 * 1024  # per check; limits the effect of a typing error in the users file

_FORMAT = re.compile(r"\$scrypt\$ln=(\d{1,2}),r=(\d{1,2}),p=(\d{1,2})\$([A-Za-z0-9+/]+)\$([A-Za-z0-9+/]+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Cost:
    """The scrypt parameters of a hash, which determine the cost of checking a password: 2**log2_n * r * 128 bytes of
    memory, filled p times."""

    log2_n: int = 14
    r: int = 8
    p: int = 5

    def __post_init__(self) -> None:
        if not (1 <= self.log2_n <= 24 and self.r >= 1 and self.p >= 1) or self.memory_bytes > MEMORY_BYTES_MAX:
            raise ValueError(
                f"the scrypt parameters ln={self.log2_n},r={self.r},p={self.p} are out of bounds: expected ln from "
                f"1 to 24, r and p from 1, and at most {MEMORY_BYTES_MAX} bytes of memory (128 * r * 2**ln); use the "
                "parameters that `headrace registry user` prints"
            )

    @property
    def memory_bytes(self) -> int:
        return 128 * self.r * ((1 << self.log2_n) + self.p)


DEFAULT_COST: Final = Cost()
"""16 MB and about 0.2 s. OWASP's Password Storage Cheat Sheet rates it equal to 128 MB filled once."""


@dataclass(frozen=True, slots=True)
class PasswordHash:
    """A salted scrypt hash of a password. `str()` gives the text for a users file."""

    cost: Cost
    salt: bytes = field(repr=False)
    digest: bytes = field(repr=False)

    @classmethod
    def of(cls, password: str, salt: bytes, cost: Cost = DEFAULT_COST) -> PasswordHash:
        """Hashes a password.

        Args:
            password: any text.
            salt: `SALT_BYTES` random bytes, never reused.
            cost: the cost of checking a password against the hash.
        """
        return cls(cost, salt, _scrypt(password, salt, cost, HASH_BYTES))

    @classmethod
    def parse(cls, text: str) -> PasswordHash:
        """Parses a hash as it is written in a users file.

        Raises:
            ValueError: the text is not such a hash, or its parameters or length are out of bounds; the message does not
                repeat salt and hash.
        """
        found = _FORMAT.fullmatch(text)
        if found is None:
            raise ValueError("expected $scrypt$ln=…,r=…,p=…$salt$hash, as `headrace registry user` prints it")
        cost = Cost(*(int(number) for number in found.group(1, 2, 3)))
        try:
            salt, digest = (base64.b64decode(part + "=" * (-len(part) % 4)) for part in found.group(4, 5))
        except binascii.Error:
            raise ValueError("salt or hash is not base64; copy the text that `headrace registry user` prints") from None
        if not 16 <= len(digest) <= 64:
            raise ValueError(
                f"the hash has {len(digest)} bytes, expected 16 to 64; copy the text that `headrace registry user` "
                "prints"
            )
        return cls(cost, salt, digest)

    def matches(self, password: str) -> bool:
        """Whether the password has this hash. Both results take the same time."""
        return hmac.compare_digest(_scrypt(password, self.salt, self.cost, len(self.digest)), self.digest)

    def __str__(self) -> str:
        salt, digest = (base64.b64encode(part).decode().rstrip("=") for part in (self.salt, self.digest))
        return f"$scrypt$ln={self.cost.log2_n},r={self.cost.r},p={self.cost.p}${salt}${digest}"


def _scrypt(password: str, salt: bytes, cost: Cost, length: int) -> bytes:
    return hashlib.scrypt(
        password.encode("utf-8", "surrogatepass"),
        salt=salt,
        n=2**cost.log2_n,
        r=cost.r,
        p=cost.p,
        # OpenSSL counts a few kilobytes more than the algorithm needs.
        maxmem=2 * cost.memory_bytes + 1024 * 1024,
        dklen=length,
    )
