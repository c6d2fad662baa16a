"""Reads a data directory without the broker: prints the batches of logs, and verifies all files."""
