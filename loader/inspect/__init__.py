"""Read-only reports for operators about the state of the loader, from the commit log and the files."""
