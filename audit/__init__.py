"""Counts by topic, tier and ten-minute window of message time, and what they prove.

Tiers `count` messages by `window`, `emit` publishes the counts, `ingest` brings them into the `store`, and `reconcile`
says which windows are complete, short or doubled.
"""
