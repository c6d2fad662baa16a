"""Test support for the loader: worlds with fakes or real servers, oracles of projected rows, storages, and fuzzers of
the C core."""
