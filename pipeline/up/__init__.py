"""`headrace up`: supervised processes on one machine. `plan` has the pure functions, `part` a child process,
`supervisor` the main loop."""
