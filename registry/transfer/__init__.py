"""Exports a registry to a file and imports a file into a registry, through the REST API only.

Either registry may be another implementation of the API. `snapshot` is the content of a file, `export_file` its format,
`remote` the API calls, `export` reads a registry into a snapshot, `plan` computes the actions or problems of an import
from the snapshot and the target's content, and `execution` runs the actions.
"""
