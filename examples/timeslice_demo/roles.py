"""What a job's sampler and trainer do with their device in each phase; the processes around them are in worker.py.

Each phase starts the device's work first and does the host's share while that runs: check the memory, read what is
needed, compute, write back, seal. Nothing is kept on the host from one phase to the next: a phase begins with what
device memory holds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np

from timeslice_demo.arena import Arena, Memory
from timeslice_demo.digits import Digits
from timeslice_demo.grpo import Adam, Floats, GrpoConfig, Rollouts, generate, initial_adam, initial_weights, train
from timeslice_demo.recorded import Pool


class Accelerator(Memory, Protocol):
    """What a role needs of a device; device.Device is one."""

    def start_busy(self, duration_s: float) -> None: ...
    def wait(self) -> None: ...


OpenDevice = Callable[[int], Accelerator]


class Purpose(StrEnum):
    """What a stream of random numbers is for; a stream depends on seed, purpose and step alone."""

    INITIAL = "initial"
    GENERATE = "generate"
    TRAIN = "train"
    FILLER = "filler"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleConfig:
    """What a role needs to know, the same for both roles of a job."""

    seed: int
    ordinals: dict[Pool, int]
    """Which of the devices that a process sees is each pool's."""
    memory_bytes: int
    """Of its device that a process fills."""
    grpo: GrpoConfig


@dataclass(frozen=True, slots=True)
class PhaseResult:
    """What a phase left to tell."""

    changed: list[str]
    """Arrays whose content changed since the last phase though nobody had any business with them: must be empty."""
    rollouts: Rollouts | None = None
    weights: Floats | None = None


def random_stream(seed: int, purpose: Purpose, step: int = 0) -> np.random.Generator:
    return np.random.default_rng([seed, list(Purpose).index(purpose), step])


def _rollout_fields(config: GrpoConfig) -> dict[str, tuple[tuple[int, ...], type]]:
    answers = (config.prompts, config.samples)
    return {
        "prompt_ids": ((config.prompts,), np.int32),
        "actions": (answers, np.int32),
        "log_probs": (answers, np.float32),
        "rewards": (answers, np.float32),
    }


class Sampler:
    """Answers prompts with the policy whose weights lie on its device."""

    def __init__(self, config: RoleConfig, digits: Digits, open_device: OpenDevice) -> None:
        self._config, self._digits, self._open_device = config, digits, open_device
        self._device: Accelerator | None = None
        self._arena: Arena | None = None

    def generate(self, step: int, busy_s: float) -> PhaseResult:
        device, arena = self._begin(busy_s)
        changed = arena.changes()
        rng = random_stream(self._config.seed, Purpose.GENERATE, step)
        rollouts = generate(self._config.grpo, arena["weights"], self._digits.images, self._digits.labels, rng)
        for name, value in rollouts._asdict().items():
            arena[name] = value
        # What goes to the trainer is what the device holds, not what was just computed.
        stored = Rollouts(**{name: arena[name] for name in Rollouts._fields})
        arena.seal()
        device.wait()
        return PhaseResult(changed, rollouts=stored)

    def take_weights(self, weights: Floats, busy_s: float) -> PhaseResult:
        """The sampler's half of a weight sync."""
        device, arena = self._begin(busy_s)
        changed = arena.changes()
        arena["weights"] = weights
        arena.seal()
        device.wait()
        return PhaseResult(changed)

    def _begin(self, busy_s: float) -> tuple[Accelerator, Arena]:
        grpo = self._config.grpo
        if self._device is None or self._arena is None:
            device = self._device = self._open_device(self._config.ordinals[Pool.SAMPLER])
            device.start_busy(busy_s)
            fields = {"weights": ((grpo.weight_count,), np.float32), **_rollout_fields(grpo)}
            self._arena = _open_arena(self._config, device, Pool.SAMPLER, fields)
            self._arena["weights"] = initial_weights(grpo, random_stream(self._config.seed, Purpose.INITIAL))
            self._arena.seal()
        else:
            device = self._device
            device.start_busy(busy_s)
        return device, self._arena


class Trainer:
    """Improves the policy; weights, reference, optimizer state and rollouts lie on its device."""

    def __init__(self, config: RoleConfig, digits: Digits, open_device: OpenDevice) -> None:
        self._config, self._digits, self._open_device = config, digits, open_device
        self._device: Accelerator | None = None
        self._arena: Arena | None = None

    def train(self, step: int, rollouts: Rollouts, busy_s: float) -> PhaseResult:
        device, arena = self._begin(busy_s)
        changed = arena.changes()
        for name, value in rollouts._asdict().items():
            arena[name] = value
        weights, adam = train(
            self._config.grpo,
            arena["weights"],
            arena["reference"],
            Adam(arena["adam_mean"], arena["adam_variance"], arena["adam_updates"]),
            Rollouts(**{name: arena[name] for name in Rollouts._fields}),
            self._digits.images,
            random_stream(self._config.seed, Purpose.TRAIN, step),
        )
        arena["weights"] = weights
        arena["adam_mean"], arena["adam_variance"], arena["adam_updates"] = adam
        arena.seal()
        device.wait()
        return PhaseResult(changed)

    def start_giving_weights(self, busy_s: float) -> PhaseResult:
        """The trainer's half of a weight sync, begun: the weights are read, and the device goes on until `finish`.

        The pool is kept since training, so there was no save and no restore whose traces could be looked for.
        """
        _, arena = self._begin(busy_s)
        return PhaseResult([], weights=arena["weights"])

    def finish(self) -> PhaseResult:
        if self._device is not None:
            self._device.wait()
        return PhaseResult([])

    def _begin(self, busy_s: float) -> tuple[Accelerator, Arena]:
        if self._device is None or self._arena is None:
            device = self._device = self._open_device(self._config.ordinals[Pool.TRAINER])
            device.start_busy(busy_s)
            grpo = self._config.grpo
            vector = ((grpo.weight_count,), np.float32)
            fields = {
                "weights": vector,
                "reference": vector,
                "adam_mean": vector,
                "adam_variance": vector,
                "adam_updates": ((1,), np.int32),
                **_rollout_fields(grpo),
            }
            arena = self._arena = _open_arena(self._config, device, Pool.TRAINER, fields)
            initial = initial_weights(grpo, random_stream(self._config.seed, Purpose.INITIAL))
            arena["weights"] = arena["reference"] = initial
            arena["adam_mean"], arena["adam_variance"], arena["adam_updates"] = initial_adam(grpo)
            arena.seal()
        else:
            device = self._device
            device.start_busy(busy_s)
        return device, self._arena


ROLES: dict[Pool, Callable[[RoleConfig, Digits, OpenDevice], Sampler | Trainer]] = {
    Pool.SAMPLER: Sampler,
    Pool.TRAINER: Trainer,
}


def _open_arena(
    config: RoleConfig, device: Accelerator, pool: Pool, fields: dict[str, tuple[tuple[int, ...], type]]
) -> Arena:
    seed = [config.seed, list(Purpose).index(Purpose.FILLER), list(Pool).index(pool)]
    return Arena(device, fields, config.memory_bytes, seed)
