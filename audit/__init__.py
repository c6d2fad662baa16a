"""Audit: message counts by topic, tier and ten-minute window of message time, and their reconciliation.

The tiers producer, broker, loader and consumer count messages (`count`, `window`). `row_encoder` encodes the counts for
the audit topic, `ingest` stores them in SQLite (`store`), and `reconcile` compares the tiers and returns a verdict for
each window.
"""
