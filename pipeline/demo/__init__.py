"""The demo: a year of real flights through the whole pipeline, with expected query results."""
