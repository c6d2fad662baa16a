"""What an operator decides about next offsets: `choose` makes the decision, `connect_files` reads where Kafka Connect
was. Showing them is `inspect.offsets`."""
