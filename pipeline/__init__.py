"""Whole runs: wires the other packages together.

`load` wires a load or a rewrite, `up` runs all servers and loads of one machine, `sql` runs queries over the tables,
and `demo` runs the whole pipeline. `metastore_server` and `sql_server` are processes of `up`.
"""
