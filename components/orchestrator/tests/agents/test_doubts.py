"""When an agent without memory is believed that a context is idle (row 49)."""

from orchestrator.agents.doubts import Doubts
from orchestrator.core.nodes import is_unexplained
from orchestrator.core.types import ContextState, ContextView, GroupId, JobId

A = (JobId("a"), GroupId("g"))


def said(doubts: Doubts, state: ContextState, now: float) -> ContextView:
    return doubts.judge(ContextView(*A, state), now)


def test_a_job_that_was_never_seen_on_the_device_is_idle() -> None:
    doubts = Doubts()
    assert said(doubts, ContextState.IDLE, 0.0).state is ContextState.IDLE


def test_a_job_that_was_on_the_device_is_idle_only_when_that_is_said_for_a_while() -> None:
    doubts = Doubts(doubt_s=3.0)
    said(doubts, ContextState.RUNNING, 0.0)
    assert said(doubts, ContextState.IDLE, 1.0).state is ContextState.TRANSITIONING
    assert said(doubts, ContextState.IDLE, 3.9).state is ContextState.TRANSITIONING
    assert said(doubts, ContextState.IDLE, 4.0).state is ContextState.IDLE
    assert said(doubts, ContextState.IDLE, 5.0).state is ContextState.IDLE


def test_an_agent_that_finds_the_job_again_ends_the_doubt() -> None:
    doubts = Doubts(doubt_s=3.0)
    said(doubts, ContextState.RUNNING, 0.0)
    said(doubts, ContextState.IDLE, 1.0)
    assert said(doubts, ContextState.RUNNING, 2.0).state is ContextState.RUNNING
    assert said(doubts, ContextState.IDLE, 4.5).state is ContextState.TRANSITIONING


def test_a_saved_job_that_shows_as_idle_is_left_to_the_core() -> None:
    doubts = Doubts()
    said(doubts, ContextState.SAVED, 0.0)
    assert said(doubts, ContextState.IDLE, 1.0).state is ContextState.IDLE


def test_a_job_whose_operation_was_lost_may_be_saved() -> None:
    doubts = Doubts()
    said(doubts, ContextState.RUNNING, 0.0)
    doubts.operation_lost(A)
    seen = said(doubts, ContextState.IDLE, 1.0)
    assert is_unexplained(seen)
    assert said(doubts, ContextState.IDLE, 2.0).state is ContextState.IDLE  # said once: the core remembers


def test_an_operation_that_goes_on_at_the_agent_stays_lost_until_it_ends() -> None:
    doubts = Doubts()
    doubts.operation_lost(A)
    said(doubts, ContextState.TRANSITIONING, 1.0)
    assert is_unexplained(said(doubts, ContextState.IDLE, 2.0))
    doubts.operation_lost(A)
    said(doubts, ContextState.SAVED, 3.0)
    assert not is_unexplained(said(doubts, ContextState.IDLE, 4.0))


def test_a_context_that_is_gone_leaves_no_doubt() -> None:
    doubts = Doubts()
    said(doubts, ContextState.RUNNING, 0.0)
    doubts.operation_lost(A)
    doubts.gone(A)
    assert said(doubts, ContextState.IDLE, 1.0).state is ContextState.IDLE
