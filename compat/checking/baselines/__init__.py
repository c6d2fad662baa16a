"""Where earlier versions come from: files in order, a directory, a git revision, a registry.

Each baseline is asked once, for all schemas of a run, so that it can fetch in bulk.
"""
