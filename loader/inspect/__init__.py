"""What operators ask: reads the log and the files, changes nothing."""
