"""Audit: message counts by topic, tier and ten-minute window of message time, and their reconciliation.

Producers, the loader and consumers count messages (`count`, `window`); the loader counts for the tiers broker and
loader. Producers and consumers publish their counts to the audit topic (`row_encoder`), from which `ingest` stores them
in the audit's database (`storage`). The loader stores its counts there directly. `reconcile` compares the tiers
producer, broker and loader, and returns a verdict for each window; `storage.update` does so for windows with new
counts, and stores verdicts, strips (`strip`) and events (`event`).
"""
