"""Which statements bring this Hive table to that schema? Types, names, a plan, its text, and who carries it out.

`plan` compares the wanted `table` with the present one and answers with `ops`; `render` makes HiveQL of them, and
`executors` change the metastore.
"""
