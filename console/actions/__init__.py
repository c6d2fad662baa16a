"""Actions that users request in the console: a queue in SQL, and the worker that runs it.

`kinds` is the table of actions: arguments, commands and permissions. `storage` has the queue and its states, which
is also the audit log. `worker` runs one action at a time, as the command `headrace …` in a child process with the user
and the settings of the console. `outcome` reads the result of a command.

A request writes a row and returns. The worker makes a dry run, the user sees its numbers and confirms with a reason,
and only then the worker makes the change.
"""
