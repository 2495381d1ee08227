"""Sampler and trainer: what they need comes from the device, what they make goes back, a changed byte is noticed."""

from collections.abc import Callable

import numpy as np
import pytest

from fake_accelerator import FakeAccelerator
from timeslice_demo.digits import Digits
from timeslice_demo.grpo import GrpoConfig
from timeslice_demo.recorded import Pool
from timeslice_demo.roles import Purpose, RoleConfig, Sampler, Trainer, random_stream

MEMORY_BYTES = 140 * 4096
CONFIG = RoleConfig(
    seed=7, ordinals={Pool.SAMPLER: 0, Pool.TRAINER: 1}, memory_bytes=MEMORY_BYTES, grpo=GrpoConfig(prompts=128)
)


class Pair:
    """A job's two roles on fake devices."""

    def __init__(self, digits: Digits, config: RoleConfig = CONFIG) -> None:
        self.devices: dict[int, FakeAccelerator] = {}
        self.sampler = Sampler(config, digits, self._open)
        self.trainer = Trainer(config, digits, self._open)

    def _open(self, ordinal: int) -> FakeAccelerator:
        return self.devices.setdefault(ordinal, FakeAccelerator(ordinal))

    def step(self, number: int, between: Callable[[], None] = lambda: None) -> tuple[list[str], bytes]:
        """One step; returns the arrays that were found changed, and the weights."""
        generated = self.sampler.generate(number, 1.0)
        between()
        assert generated.rollouts is not None
        trained = self.trainer.train(number, generated.rollouts, 2.0)
        given = self.trainer.start_giving_weights(0.5)
        assert given.weights is not None
        taken = self.sampler.take_weights(given.weights, 0.5)
        self.trainer.finish()
        return generated.changed + trained.changed + given.changed + taken.changed, given.weights.tobytes()


def test_each_fills_as_much_of_its_device_as_it_is_told(digits: Digits) -> None:
    pair = Pair(digits)
    pair.step(0)
    assert [len(device.memory) for device in pair.devices.values()] == [MEMORY_BYTES, MEMORY_BYTES]


def test_nothing_is_kept_on_the_host_between_phases(digits: Digits) -> None:
    """A job whose device memory is moved to new devices goes on with the same bits."""
    straight, moved = Pair(digits), Pair(digits)
    straight.step(0)
    moved.step(0)
    for device in moved.devices.values():
        kept = device.memory.copy()
        device.memory[:] = 0
        device.memory = kept
    assert moved.step(1) == straight.step(1)


def test_weights_come_from_the_device(digits: Digits) -> None:
    pair, other = Pair(digits), Pair(digits)
    pair.step(0)
    other.step(0)
    other.devices[1].memory[:4] = np.array([0.25], np.float32).view(np.uint8)
    assert pair.step(1)[1] != other.step(1)[1]


@pytest.mark.parametrize("ordinal", [0, 1])
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_one_changed_byte_is_noticed_wherever_it_is(digits: Digits, ordinal: int, place: str) -> None:
    pair = Pair(digits)
    assert pair.step(0)[0] == []
    memory = pair.devices[ordinal].memory
    memory[{"first": 0, "middle": len(memory) // 2, "last": len(memory) - 1}[place]] ^= 1
    changed, _ = pair.step(1)
    assert changed == (["weights"] if place == "first" else ["filler"])


def test_device_is_busy_before_the_host_works_and_awaited_after(digits: Digits) -> None:
    pair = Pair(digits)
    pair.step(0)
    assert pair.devices[0].busy == [1.0, 0.5]
    assert pair.devices[1].busy == [2.0, 0.5]
    assert (pair.devices[0].waits, pair.devices[1].waits) == (2, 2)


def test_random_streams_differ_by_seed_purpose_and_step() -> None:
    streams = [random_stream(seed, purpose, step) for seed in (0, 1) for purpose in Purpose for step in (0, 1)]
    assert len({float(stream.random()) for stream in streams}) == len(streams)
