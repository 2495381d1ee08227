"""The version of all our distributions: the one place where it stands."""

VERSION = "0.1.0"
