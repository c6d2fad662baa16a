"""Reads a data directory without the broker: batches of logs for printing, and checks of its files."""
