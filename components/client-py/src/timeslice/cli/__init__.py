"""The command `timeslice`. `main` reads the arguments; one module a command does the work."""
