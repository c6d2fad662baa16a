"""Whole runs, and what applications import: the packages wired together.

`clients` has producer and consumer; `up` starts everything on one machine, `load` wires a run of the loader, `sql` asks
the tables, `demo` shows all of it; `metastore_server` and `sql_server` are parts of `up`.
"""
