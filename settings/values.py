"""Value types of settings: addresses and durations."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a TCP port; with port 0 the operating system chooses a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Reads `host:port`, `:port` (loopback) or `[v6]:port`.

        Raises:
            ValueError: the text has none of these forms.
        """
        match = re.fullmatch(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^:\[\]]*)):(?P<port>\d{1,5})", text.strip())
        if match is None or int(match["port"]) > 65535:
            raise ValueError("expected an address host:port with a port between 0 and 65535")
        return cls(match["v6"] or match["host"] or "127.0.0.1", int(match["port"]))


@dataclass(frozen=True, slots=True, order=True)
class Duration:
    """A time span in milliseconds; written `10m`, `90s`, `500ms`, `2h` or `7d`."""

    ms: int

    _UNITS: ClassVar[Mapping[str, int]] = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

    def __str__(self) -> str:
        for unit in ("d", "h", "m", "s"):
            if self.ms and self.ms % self._UNITS[unit] == 0:
                return f"{self.ms // self._UNITS[unit]}{unit}"
        return f"{self.ms}ms"

    @property
    def seconds(self) -> float:
        return self.ms / 1000

    @classmethod
    def parse(cls, text: str) -> Duration:
        """Reads a whole number with one of the units ms, s, m, h, d.

        Raises:
            ValueError: the text has another form.
        """
        match = re.fullmatch(r"(\d{1,12})\s*(ms|s|m|h|d)", text.strip())
        if match is None:
            raise ValueError("expected a whole number with a unit, such as 10m, 90s, 500ms, 2h or 7d")
        return cls(int(match[1]) * cls._UNITS[match[2]])


def is_loopback(host: str) -> bool:
    """Returns whether a host is a loopback address, or a name whose addresses are all loopback addresses."""
    try:
        found = {str(row[4][0]) for row in socket.getaddrinfo(host or "0.0.0.0", None)}  # noqa: S104  (not bound)
        return all(ipaddress.ip_address(address).is_loopback for address in found)
    except (OSError, ValueError):
        return False
