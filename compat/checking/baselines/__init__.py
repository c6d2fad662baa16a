"""Baselines, the sources of earlier versions: files in order, a directory, a git revision, a registry or its database.

The histories of all schemas of a run are requested together, so that a baseline can fetch in bulk.
"""
