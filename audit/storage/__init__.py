"""The audit's database: rows of counts, and the verdicts, strips and events derived from the rows.

SQLite (`<data_dir>/audit.db`) or PostgreSQL, with SQLAlchemy Core. `store` has the class that other packages use,
`tables` the tables. One transaction adds rows and marks their windows as touched (`rows`); another one reconciles the
touched windows and writes their verdicts (`update`). Only this package imports SQLAlchemy, because applications that
count with `headrace.audit` have no database.
"""
