"""Fixtures of the demo's tests. BLAS has one thread, as in the demo's processes: set before numpy is imported."""

import os

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

from pathlib import Path  # noqa: E402

import pytest  # noqa: E402

from timeslice_demo.digits import Digits, read_digits, save_digits  # noqa: E402


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Digits:
    path: Path = tmp_path_factory.mktemp("digits") / "digits.npz"
    save_digits(path)
    return read_digits(path)
