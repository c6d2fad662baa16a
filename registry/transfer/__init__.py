"""Copies what a registry holds into a file, and a file into a registry, by nothing but the REST API.

Either registry may be another implementation of the API. `snapshot` is what a file holds, `lines` how it is written,
`remote` the calls, `export` registry -> snapshot, `plan` (snapshot, what the target holds) -> actions and what stands
in the way, `execute_actions` does the actions.
"""
