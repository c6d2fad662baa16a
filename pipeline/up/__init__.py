"""`headrace up`: the parts on one machine, supervised. `plan` decides, `part` is a child process, `supervisor` runs."""
