"""Entry point of pytest_test: run pytest on the files named on the command line, with //:pytest.ini."""

import os
import sys
import tempfile

import pytest

PATHS = ("GPU_MOCK_LIB_DIR", "LIBFAKETIME")
"""Variables with a path relative to the runfiles, made absolute for tests that change folder."""


def arguments() -> list[str]:
    args = ["-c", "pytest.ini", "--rootdir", os.getcwd(), "-p", "no:cacheprovider", "-ra", "--durations=5"]
    if junit := os.environ.get("XML_OUTPUT_FILE"):
        args.append("--junitxml=" + junit)
    if only := os.environ.get("TESTBRIDGE_TEST_ONLY"):
        args.append("-k" + only)
    return args


def main() -> int:
    # Bazel's own temporary folder is too deep for the path of a unix socket (107 bytes), so tests keep theirs in /tmp.
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as scratch:
        # For the few tests that are not to start from nothing: those that make clusters.
        os.environ["USER_HOME"] = os.environ.get("HOME", "")
        os.environ["HOME"] = scratch
        for name in PATHS:
            if name in os.environ:
                os.environ[name] = os.path.abspath(os.environ[name])
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = os.path.join(scratch, "hypothesis")
        sys.dont_write_bytecode = True
        return pytest.main([*arguments(), "--basetemp", os.path.join(scratch, "t"), *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
