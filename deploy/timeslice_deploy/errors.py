"""What goes wrong on the way to a cluster."""


class DeployError(Exception):
    """The command cannot go on. The text says what happened, to what, and what to do."""


class BadUsage(DeployError):
    """The flags cannot be meant as they stand."""
