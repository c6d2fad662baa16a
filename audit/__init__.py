"""Counts by topic, tier and ten-minute window of message time, and what they prove."""
