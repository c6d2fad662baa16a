"""Kafka's wire format as the broker speaks it: served API versions, frames, and hand-written codecs of frequent
requests."""
