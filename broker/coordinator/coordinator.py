from __future__ import annotations

import asyncio
from typing import Any


class GroupCoordinator:
    def __init__(self, *args: Any) -> None: ...
    async def run(self) -> None:
        await asyncio.Event().wait()

    def keep_house(self) -> None: ...
    def forget_topic(self, name: str) -> None: ...
