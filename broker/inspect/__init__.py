"""Looks at a data folder that no broker needs to serve: `dump` shows batches, `verify` checks all of it. Reads only."""
