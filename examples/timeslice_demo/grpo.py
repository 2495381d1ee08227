"""GRPO (group-relative policy optimisation) of a small classifier, as numpy on plain float32 vectors.

The task is a contextual bandit: a prompt is an 8x8 picture of a digit, an action is one of ten classes, and the
reward is 1 for the right class, else 0. As in GRPO for language models the policy answers each prompt several times,
an answer's advantage is its reward against its siblings', the update is the clipped ratio of PPO, and a KL term holds
the policy near a frozen reference.

Everything here is a function of its arguments: same inputs, same bits, provided that BLAS runs with one thread.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

PIXELS = 64
CLASSES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpoConfig:
    """The algorithm's settings; the defaults learn digits in a few steps."""

    hidden: int = 64
    """Width of the policy's one hidden layer."""
    prompts: int = 1024
    """Prompts of one generate phase."""
    samples: int = 8
    """Answers per prompt: the group that an answer's reward is held against."""
    minibatches: int = 16
    """Optimizer steps per pass over the rollouts."""
    epochs: int = 4
    """Passes over the rollouts in one train phase."""
    learning_rate: float = 5e-3
    clip: float = 0.2
    """The ratio of new to old probability is worth nothing beyond 1 +- clip."""
    kl_weight: float = 0.01
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8

    @property
    def weight_count(self) -> int:
        return PIXELS * self.hidden + self.hidden + self.hidden * CLASSES + CLASSES


class Rollouts(NamedTuple):
    """One generate phase: which prompts, and for each prompt `samples` answers (arrays of prompts x samples)."""

    prompt_ids: Ints
    actions: Ints
    log_probs: Floats
    rewards: Floats


class Adam(NamedTuple):
    """The optimizer's state; `updates` is an array of one element, so that it can live in device memory as the rest
    does.
    """

    mean: Floats
    variance: Floats
    updates: Ints


def initial_weights(config: GrpoConfig, rng: np.random.Generator) -> Floats:
    """A policy that answers at random: the last layer is nearly zero, so every class is about as likely as the
    others.
    """
    first = rng.standard_normal((PIXELS, config.hidden)) * np.sqrt(2.0 / PIXELS)
    last = rng.standard_normal((config.hidden, CLASSES)) * 0.01
    parts = (first.ravel(), np.zeros(config.hidden), last.ravel(), np.zeros(CLASSES))
    return np.concatenate(parts).astype(np.float32)


def initial_adam(config: GrpoConfig) -> Adam:
    zeros = np.zeros(config.weight_count, np.float32)
    return Adam(zeros, zeros.copy(), np.zeros(1, np.int32))


def generate(config: GrpoConfig, weights: Floats, images: Floats, labels: Ints, rng: np.random.Generator) -> Rollouts:
    """Answer `config.prompts` pictures, none twice, `config.samples` times each, and mark the answers."""
    prompt_ids = rng.permutation(len(images))[: config.prompts].astype(np.int32)
    log_probs, _ = _forward(config, weights, images[prompt_ids])
    # Sampling by Gumbel noise: the largest of log-probability plus noise is distributed as the policy is.
    noise = rng.gumbel(size=(len(prompt_ids), config.samples, CLASSES)).astype(np.float32)
    actions = np.argmax(log_probs[:, None, :] + noise, axis=2).astype(np.int32)
    return Rollouts(
        prompt_ids=prompt_ids,
        actions=actions,
        log_probs=np.take_along_axis(log_probs, actions, axis=1),
        rewards=(actions == labels[prompt_ids][:, None]).astype(np.float32),
    )


def train(
    config: GrpoConfig,
    weights: Floats,
    reference: Floats,
    adam: Adam,
    rollouts: Rollouts,
    images: Floats,
    rng: np.random.Generator,
) -> tuple[Floats, Adam]:
    """Improve the policy on the rollouts; the arguments are left as they are."""
    advantages = group_advantages(rollouts.rewards)
    reference_log_probs, _ = _forward(config, reference, images[rollouts.prompt_ids])
    for _ in range(config.epochs):
        order = rng.permutation(len(rollouts.prompt_ids))
        for rows in np.array_split(order, config.minibatches):
            gradient = _gradient(
                config,
                weights,
                images[rollouts.prompt_ids[rows]],
                rollouts.actions[rows],
                rollouts.log_probs[rows],
                advantages[rows],
                reference_log_probs[rows],
            )
            weights, adam = _adam_step(config, weights, adam, gradient)
    return weights, adam


def group_advantages(rewards: Floats) -> Floats:
    """How much better each answer was than its siblings, in their standard deviations; 0 where all were alike."""
    centred = rewards - rewards.mean(axis=1, keepdims=True)
    advantages: Floats = (centred / (rewards.std(axis=1, keepdims=True) + 1e-4)).astype(np.float32)
    return advantages


def accuracy(config: GrpoConfig, weights: Floats, images: Floats, labels: Ints) -> float:
    """Share of pictures whose most likely class is right."""
    log_probs, _ = _forward(config, weights, images)
    return float((log_probs.argmax(axis=1) == labels).mean())


def _split(config: GrpoConfig, weights: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """The layers as views into the flat vector: first matrix and bias, last matrix and bias."""
    ends = np.cumsum([PIXELS * config.hidden, config.hidden, config.hidden * CLASSES])
    first, first_bias, last, last_bias = np.split(weights, ends)
    return first.reshape(PIXELS, config.hidden), first_bias, last.reshape(config.hidden, CLASSES), last_bias


def _forward(config: GrpoConfig, weights: Floats, images: Floats) -> tuple[Floats, Floats]:
    """Log-probabilities of the classes (pictures x classes), and the hidden layer for the way back."""
    first, first_bias, last, last_bias = _split(config, weights)
    hidden = np.maximum(images @ first + first_bias, np.float32(0))
    logits = hidden @ last + last_bias
    logits = logits - logits.max(axis=1, keepdims=True)
    log_probs: Floats = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return log_probs, hidden


def _gradient(
    config: GrpoConfig,
    weights: Floats,
    images: Floats,
    actions: Ints,
    old_log_probs: Floats,
    advantages: Floats,
    reference_log_probs: Floats,
) -> Floats:
    """Gradient of the GRPO loss: minus the clipped, weighted advantage, plus kl_weight times KL to the reference."""
    log_probs, hidden = _forward(config, weights, images)
    probs = np.exp(log_probs)
    new = np.take_along_axis(log_probs, actions, axis=1)
    ratio = np.exp(new - old_log_probs)
    unclipped = ratio * advantages <= np.clip(ratio, 1 - config.clip, 1 + config.clip) * advantages
    # d loss / d log-probability of each sampled answer; nothing flows where the clipped term is the smaller one.
    pull = -np.where(unclipped, ratio * advantages, np.float32(0)) / np.float32(actions.size)
    per_class = np.zeros_like(probs)
    rows = np.repeat(np.arange(len(images)), actions.shape[1])
    np.add.at(per_class, (rows, actions.ravel()), pull.ravel())
    logit_gradient = per_class - probs * per_class.sum(axis=1, keepdims=True)
    # KL is exact here: ten classes can be summed, where language models sample it.
    difference = log_probs - reference_log_probs
    kl = (probs * difference).sum(axis=1, keepdims=True)
    logit_gradient += np.float32(config.kl_weight / len(images)) * probs * (difference - kl)

    _, _, last, _ = _split(config, weights)
    hidden_gradient = (logit_gradient @ last.T) * (hidden > 0)
    parts = (
        (images.T @ hidden_gradient).ravel(),
        hidden_gradient.sum(axis=0),
        (hidden.T @ logit_gradient).ravel(),
        logit_gradient.sum(axis=0),
    )
    return np.concatenate(parts).astype(np.float32)


def _adam_step(config: GrpoConfig, weights: Floats, adam: Adam, gradient: Floats) -> tuple[Floats, Adam]:
    updates = int(adam.updates[0]) + 1
    mean = config.adam_beta1 * adam.mean + (1 - config.adam_beta1) * gradient
    variance = config.adam_beta2 * adam.variance + (1 - config.adam_beta2) * gradient * gradient
    scale = config.learning_rate * np.sqrt(1 - config.adam_beta2**updates) / (1 - config.adam_beta1**updates)
    step = scale * mean / (np.sqrt(variance) + config.adam_epsilon)
    return (
        (weights - step).astype(np.float32),
        Adam(mean.astype(np.float32), variance.astype(np.float32), np.array([updates], np.int32)),
    )
