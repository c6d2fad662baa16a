"""Checks schema files: the implementation of the commands `compat` and `schema`, on top of the pure modules of
`compat`.

    inputs -> subjects -> baselines -> reports -> suppressions -> formats -> exit code

`inputs` reads files, directories and standard input; `sources` selects the files, such as those that a branch changed;
`type_sets` parses texts that use each other's types; `baselines` find the earlier versions; `run` checks all schemas in
several processes.
"""
