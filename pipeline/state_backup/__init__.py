"""Backs up the state of a running `headrace up` on one machine, and restores it."""
