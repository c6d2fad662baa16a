"""Runs the deliveries of all webhooks in the gateway's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

from headrace.gateway.decoding import Formats, MessageDecoder
from headrace.gateway.metrics import GatewayMetrics
from headrace.gateway.sender import RecordSender
from headrace.gateway.webhooks.delivery import WebhookDelivery
from headrace.gateway.webhooks.metrics import WebhookMetrics
from headrace.gateway.webhooks.post import WebhookPost
from headrace.gateway.webhooks.webhook import Webhook

logger = logging.getLogger(__name__)

RESTART_S: Final = 10.0


@contextlib.asynccontextmanager
async def running_webhooks(
    webhooks: Sequence[Webhook],
    options: Mapping[str, Any],
    decoder: MessageDecoder,
    sender: RecordSender,
    metrics: GatewayMetrics,
) -> AsyncIterator[None]:
    """Delivers while the block runs, one task for each webhook. At the end, each batch that is under way is delivered
    again by the next gateway."""
    counts = WebhookMetrics(metrics)
    tasks = []
    for webhook in webhooks:
        formats = Formats(webhook.key_format, webhook.value_format)
        delivery = WebhookDelivery(
            webhook, options, WebhookPost(webhook), _encoder(decoder, formats), sender, counts.of(webhook.name)
        )
        tasks.append(asyncio.create_task(_run(delivery, webhook.name), name=f"webhook-{webhook.name}"))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _encoder(decoder: MessageDecoder, formats: Formats) -> Any:
    return lambda message: decoder.item(message, formats)


async def _run(delivery: WebhookDelivery, name: str) -> None:
    """Restarts a delivery after a defect. The others are not affected."""
    while True:
        try:
            await delivery.run()
        except Exception:
            logger.exception("webhook_stopped webhook=%s action=restarting after %g s", name, RESTART_S)
            await asyncio.sleep(RESTART_S)
