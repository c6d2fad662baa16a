"""The demo: a year of real flights through the whole pipeline, and the answers it must give."""
