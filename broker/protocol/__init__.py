"""Which versions of which requests this broker serves, how frames begin, and the two hot requests read by hand."""
