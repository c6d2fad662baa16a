"""The database: `models` are its tables, `repository` reads and writes values of the domain, `database` opens it."""
