"""Ids of transactions.

An id contains the time of its creation. So a gateway can refuse ids that are older than the ledger remembers: after the
ledger has forgotten a transaction, a repeated one would be written twice.
"""

from __future__ import annotations

import re
import secrets
from hashlib import blake2b
from typing import Final, NewType

TransactionKey = NewType("TransactionKey", bytes)
"""Hash of a client and the id of one of its transactions."""

DAY_MS: Final = 24 * 3600 * 1000
LEDGER_MS: Final = 7 * DAY_MS
"""How long the ledger remembers a committed transaction."""
USABLE_MS: Final = 6 * DAY_MS
"""How long an id can be used. The difference to `LEDGER_MS` covers clocks that differ, and requests that take long."""
AHEAD_MS_MAX: Final = DAY_MS // 2
"""How far the time of an id may be in the future, because the clocks of gateways differ."""
_ID: Final = re.compile(r"([0-9a-f]{12})-[0-9a-f]{16}")


def new_transaction_id(now_ms: int) -> str:
    return f"{now_ms:012x}-{secrets.token_hex(8)}"


def created_ms(transaction_id: str) -> int:
    """Returns when an id was created, in milliseconds since 1970.

    Raises:
        ValueError: the text is no id.
    """
    found = _ID.fullmatch(transaction_id)
    if found is None:
        raise ValueError(f"{transaction_id!r:.60} is not the id of a transaction")
    return int(found[1], 16)


def transaction_key(client: str, transaction_id: str) -> TransactionKey:
    return TransactionKey(blake2b(f"{client}\0{transaction_id}".encode(), digest_size=16).digest())
