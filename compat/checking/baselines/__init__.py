"""Baselines, the sources of earlier versions: files in order, a directory, a git revision, a registry.

A baseline is queried once for all schemas of a run, so that it can fetch in bulk.
"""
