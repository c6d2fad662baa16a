"""Read-only reports for operators, from the commit log and the files."""
