"""`timeslice doctor`: facts of this machine (`facts`, gathered by `machine`, `driver`, `installation`, `servers`), what
to think of them (`findings` and the `check_*` modules, which are pure), and how it is told (`report`)."""
