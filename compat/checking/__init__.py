"""Checking schema files: what the commands `compat` and `schema` do between the command line and the pure packages.

    inputs -> subjects -> baselines -> reports -> suppressions -> formats -> exit code

`inputs` reads files, directories and standard input; `type_sets` parses texts that use each other's types; `baselines`
find the earlier versions; `changed` asks git what is new; `run` makes answers of it all, in several processes.
"""
