"""Consumer groups and their offsets: `group` is the state machine, `coordinator` keeps it on the log."""
