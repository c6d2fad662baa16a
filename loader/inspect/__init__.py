"""Read-only reports for operators about the state of the loader, from the commit log, the files and the brokers. Also
the definition of the view on a table's newest schema (`latest_view`)."""
