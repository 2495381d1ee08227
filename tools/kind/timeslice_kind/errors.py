"""What the commands of //tools/kind print instead of a traceback."""


class KindError(Exception):
    """Something is missing or failed; the text says what, and what to do about it."""
