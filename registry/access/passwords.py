"""Hashes of passwords: scrypt (RFC 7914) from the standard library, written `$scrypt$ln=14,r=8,p=5$salt$hash`.

That is the PHC string format, salt and hash in base64 without padding, which passlib and others write too.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from dataclasses import dataclass, field
from typing import Final

PASSWORD_BYTES_MAX: Final = 1024  # what is longer is refused, since it is hashed for whoever sends it
SALT_BYTES: Final = 16
HASH_BYTES: Final = 32
MEMORY_BYTES_MAX: Final = 256 * 1024 * 1024  # of one check; a file asks for it, and a typing error must not take more

_FORMAT = re.compile(r"\$scrypt\$ln=(\d{1,2}),r=(\d{1,2}),p=(\d{1,2})\$([A-Za-z0-9+/]+)\$([A-Za-z0-9+/]+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a check costs: 2**log2_n * r * 128 bytes of memory, and p times the work of filling it."""

    log2_n: int = 14
    r: int = 8
    p: int = 5

    def __post_init__(self) -> None:
        if not (1 <= self.log2_n <= 24 and self.r >= 1 and self.p >= 1) or self.memory_bytes > MEMORY_BYTES_MAX:
            raise ValueError(
                f"ln={self.log2_n},r={self.r},p={self.p} is out of bounds: "
                f"2**ln * r * 128 bytes of memory must be at most {MEMORY_BYTES_MAX}"
            )

    @property
    def memory_bytes(self) -> int:
        return 128 * self.r * ((1 << self.log2_n) + self.p)


DEFAULT_COST: Final = Cost()
"""16 MB and some 0.2 s, which OWASP's Password Storage Cheat Sheet counts as equal to 128 MB filled once."""


@dataclass(frozen=True, slots=True)
class PasswordHash:
    """Constant-time to check; `str()` is the text for a users file."""

    cost: Cost
    salt: bytes = field(repr=False)
    digest: bytes = field(repr=False)

    @classmethod
    def of(cls, password: str, salt: bytes, cost: Cost = DEFAULT_COST) -> PasswordHash:
        """The hash of a password.

        Args:
            password: any text.
            salt: `SALT_BYTES` random bytes of its own.
            cost: of a check.
        """
        return cls(cost, salt, _scrypt(password, salt, cost, HASH_BYTES))

    @classmethod
    def parse(cls, text: str) -> PasswordHash:
        """
        Raises:
            ValueError: it is not such a hash; the message does not repeat it.
        """
        found = _FORMAT.fullmatch(text)
        if found is None:
            raise ValueError("expected $scrypt$ln=…,r=…,p=…$salt$hash, as `headrace registry user` prints it")
        cost = Cost(*(int(number) for number in found.group(1, 2, 3)))
        try:
            salt, digest = (base64.b64decode(part + "=" * (-len(part) % 4)) for part in found.group(4, 5))
        except binascii.Error:
            raise ValueError("salt or hash is not base64") from None
        if not 16 <= len(digest) <= 64:
            raise ValueError("the hash has not between 16 and 64 bytes")
        return cls(cost, salt, digest)

    def matches(self, password: str) -> bool:
        """Whether it is the hash of this password; takes equally long either way."""
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
        # OpenSSL counts some kilobytes more than the algorithm needs.
        maxmem=2 * cost.memory_bytes + 1024 * 1024,
        dklen=length,
    )
