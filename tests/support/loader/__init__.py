"""The loader: worlds with fakes or real servers, oracles of projected rows,
storages, and the fuzzers of the C core.
"""
