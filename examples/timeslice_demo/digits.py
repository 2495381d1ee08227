"""The data set: scikit-learn's 1,797 handwritten digits, split once and for all."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from timeslice_demo.grpo import Floats, Ints

HELD_OUT = 360


class Digits(NamedTuple):
    """Pictures (rows of 64 values from 0 to 1) and what they show; the held-out ones are never trained on."""

    images: Floats
    labels: Ints
    held_out_images: Floats
    held_out_labels: Ints


def make_digits() -> Digits:
    """The data set, from scikit-learn."""
    from sklearn.datasets import load_digits  # takes a second, and only one process of a demo needs it

    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    images = (bunch.data[order] / 16).astype(np.float32)
    labels = bunch.target[order].astype(np.int32)
    return Digits(images[HELD_OUT:], labels[HELD_OUT:], images[:HELD_OUT], labels[:HELD_OUT])


def save_digits(path: Path) -> None:
    """Write the data set for the jobs' processes, so that only one process needs to import scikit-learn."""
    np.savez(path, **make_digits()._asdict())


def read_digits(path: Path) -> Digits:
    with np.load(path) as stored:
        return Digits(**stored)
