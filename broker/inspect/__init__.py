"""Looks at a data directory that no broker needs to serve: `dump` shows batches, `verify` checks all of it. Reads
only."""
