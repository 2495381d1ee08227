"""The algorithm: it learns, it is a function of its arguments, and its gradient is that of the loss that it names."""

import numpy as np
import pytest

from timeslice_demo import grpo
from timeslice_demo.digits import HELD_OUT, Digits
from timeslice_demo.grpo import Adam, Floats, GrpoConfig, Rollouts, generate, initial_adam, initial_weights, train


def learn(config: GrpoConfig, digits: Digits, steps: int, seed: int) -> tuple[list[float], Floats, Adam]:
    """The rewards of the steps, the final weights, and the optimizer."""
    weights = reference = initial_weights(config, np.random.default_rng([seed, 0]))
    adam, rewards = initial_adam(config), []
    for step in range(steps):
        rollouts = generate(config, weights, digits.images, digits.labels, np.random.default_rng([seed, 1, step]))
        rewards.append(float(rollouts.rewards.mean()))
        weights, adam = train(
            config, weights, reference, adam, rollouts, digits.images, np.random.default_rng([seed, 2, step])
        )
    return rewards, weights, adam


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_reward_rises_from_guessing_to_well_above(digits: Digits, seed: int) -> None:
    config = GrpoConfig()
    rewards, weights, adam = learn(config, digits, 5, seed)
    assert 0.07 < rewards[0] < 0.13, "an untrained policy guesses one of ten classes"
    assert rewards == sorted(rewards)
    assert rewards[-1] > 0.75
    assert grpo.accuracy(config, weights, digits.held_out_images, digits.held_out_labels) > 0.85
    assert adam.updates[0] == 5 * config.epochs * config.minibatches


def test_same_seed_gives_the_same_bits_and_another_seed_does_not(digits: Digits) -> None:
    first, again, other = (learn(GrpoConfig(), digits, 2, seed) for seed in (3, 3, 4))
    assert first[0] == again[0]
    assert first[1].tobytes() == again[1].tobytes()
    assert first[1].tobytes() != other[1].tobytes()


def test_arguments_are_left_as_they_are(digits: Digits) -> None:
    config = GrpoConfig(prompts=64)
    weights = initial_weights(config, np.random.default_rng(0))
    rollouts = generate(config, weights, digits.images, digits.labels, np.random.default_rng(1))
    kept = weights.copy(), rollouts.log_probs.copy()
    train(config, weights, weights, initial_adam(config), rollouts, digits.images, np.random.default_rng(2))
    assert np.array_equal(weights, kept[0])
    assert np.array_equal(rollouts.log_probs, kept[1])


def test_rollouts_are_marked_against_the_labels_and_prompts_do_not_repeat(digits: Digits) -> None:
    config = GrpoConfig(prompts=200, samples=4)
    weights = initial_weights(config, np.random.default_rng(0))
    rollouts = generate(config, weights, digits.images, digits.labels, np.random.default_rng(1))
    assert len(set(rollouts.prompt_ids.tolist())) == 200
    assert rollouts.actions.shape == (200, 4)
    assert np.array_equal(rollouts.rewards == 1, rollouts.actions == digits.labels[rollouts.prompt_ids][:, None])


def test_answers_follow_the_policy_that_they_claim(digits: Digits) -> None:
    """The stored log-probabilities, averaged over answers, match how often each class was drawn."""
    config = GrpoConfig(prompts=1, samples=200_000)
    weights = initial_weights(config, np.random.default_rng(0)) * np.float32(4)
    rollouts = generate(config, weights, digits.images, digits.labels, np.random.default_rng(1))
    for action in range(grpo.CLASSES):
        drawn = rollouts.actions[0] == action
        if drawn.any():
            assert drawn.mean() == pytest.approx(float(np.exp(rollouts.log_probs[0][drawn][0])), abs=0.005)


def test_advantages_are_relative_to_the_siblings() -> None:
    rewards = np.array([[1, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]], np.float32)
    advantages = grpo.group_advantages(rewards)
    assert advantages[0, 0] == pytest.approx(3**0.5, rel=1e-3)
    assert advantages[0].sum() == pytest.approx(0, abs=1e-5)
    assert not advantages[1:].any(), "where all answers were alike there is nothing to learn"


def test_gradient_is_that_of_the_clipped_loss_with_kl(digits: Digits) -> None:
    config = GrpoConfig(hidden=5, kl_weight=0.3)
    rng = np.random.default_rng(0)
    weights = initial_weights(config, rng) + rng.normal(size=config.weight_count).astype(np.float32) * np.float32(0.3)
    old = initial_weights(config, rng)
    images = digits.images[:20]
    actions = rng.integers(0, grpo.CLASSES, (20, 6)).astype(np.int32)
    advantages = rng.normal(size=(20, 6)).astype(np.float32)
    old_log_probs = np.take_along_axis(grpo._forward(config, old, images)[0], actions, axis=1)
    reference = grpo._forward(config, initial_weights(config, rng), images)[0].astype(np.float64)

    def loss(at: Floats) -> float:
        log_probs = grpo._forward(config, at, images)[0].astype(np.float64)
        ratio = np.exp(np.take_along_axis(log_probs, actions, axis=1) - old_log_probs)
        worth = np.minimum(ratio * advantages, np.clip(ratio, 1 - config.clip, 1 + config.clip) * advantages)
        kl = (np.exp(log_probs) * (log_probs - reference)).sum(axis=1).mean()
        return float(-worth.mean() + config.kl_weight * kl)

    gradient = grpo._gradient(config, weights, images, actions, old_log_probs, advantages, reference.astype(np.float32))
    for direction in rng.normal(size=(5, config.weight_count)):
        step = direction * 1e-6
        slope = (loss(weights.astype(np.float64) + step) - loss(weights.astype(np.float64) - step)) / 2e-6  # type: ignore[arg-type]
        assert float(gradient @ direction) == pytest.approx(slope, rel=1e-3, abs=1e-4)


def test_held_out_digits_are_never_trained_on(digits: Digits) -> None:
    assert len(digits.held_out_labels) == HELD_OUT
    assert len(digits.images) == 1797 - HELD_OUT
    seen = {picture.tobytes() for picture in digits.images}
    assert sum(picture.tobytes() in seen for picture in digits.held_out_images) <= 5  # the data set has a few doubles


def test_rollouts_keep_their_fields_in_order() -> None:
    assert Rollouts._fields == ("prompt_ids", "actions", "log_probs", "rewards")
