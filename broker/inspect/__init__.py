"""Inspects a data directory without a running broker: dumps batches and verifies files."""
