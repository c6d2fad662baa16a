"""What an operator decides about next offsets: `choose` makes the commit, `connect_files` reads where Kafka Connect
was. Showing them is `inspect.offsets`."""
