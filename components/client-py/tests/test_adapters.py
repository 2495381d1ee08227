"""Which workloads can save themselves, and what each of the agent's commands calls on them."""

import asyncio
import inspect

import pytest

import vllm
from snapshot_agent.v1alpha1 import snapshot_agent_pb2 as pb2
from timeslice.snapshot_agent.adapters import (
    CallbackAdapter,
    SnapshottableAdapter,
    VLLMAdapter,
    WorkloadAdapter,
    mode_from_name,
    mode_name,
    resolve_adapter,
)


class Model:
    """Snapshottable by having the two methods."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def snapshot(self, mode, tags):
        self.calls.append(("snapshot", mode, tags))

    def restore(self, tags):
        self.calls.append(("restore", tags))


class Particular(Model):
    supported_modes = ("discard",)
    default_mode = "discard"
    tags = ("weights",)


class MyEngine(vllm.LLM):
    """A subclass, in a module of the user's."""


class Lookalike:
    """Named like an engine, but not vLLM's."""

    def sleep(self, level):
        raise AssertionError

    def wake_up(self, tags):
        raise AssertionError


Lookalike.__name__ = "LLM"


@pytest.mark.parametrize(("name", "number"), [("offload", 1), ("discard", 2)])
def test_modes_have_a_name_and_a_number(name, number):
    assert mode_from_name(name) == number == getattr(pb2, f"SUSPEND_MODE_{name.upper()}")
    assert mode_name(number) == name


@pytest.mark.parametrize("name", ["", "off-load", "delete"])
def test_unknown_mode_is_refused_with_those_that_are_known(name):
    with pytest.raises(ValueError, match="'offload' or 'discard'"):
        mode_from_name(name)


@pytest.mark.parametrize("number", [pb2.SUSPEND_MODE_UNSPECIFIED, 99])
def test_number_that_is_no_mode_is_refused(number):
    with pytest.raises(ValueError, match="offload, discard"):
        mode_name(number)


def test_callbacks_get_mode_and_tags():
    seen = []
    adapter = resolve_adapter(None, lambda mode, tags: seen.append((mode, tags)), lambda tags: seen.append(tags))
    assert isinstance(adapter, CallbackAdapter)
    assert (adapter.supported_modes, adapter.default_mode, adapter.tags) == (("offload", "discard"), "offload", ())
    assert adapter.name
    adapter.snapshot("discard", ("weights",))
    adapter.restore(("weights", "kv_cache"))
    assert seen == [("discard", ["weights"]), ["weights", "kv_cache"]]


def test_what_a_callback_returns_is_handed_on():
    async def on_snapshot(mode, tags):
        return mode

    coroutine = resolve_adapter(None, on_snapshot, print).snapshot("offload", ())
    assert inspect.iscoroutine(coroutine)
    assert asyncio.run(coroutine) == "offload"


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ((None, print, None), ValueError, "on_restore is missing"),
        ((None, None, print), ValueError, "on_snapshot is missing"),
        ((Model(), print, print), ValueError, "either a workload or callbacks"),
        ((Model(), None, print), ValueError, "either a workload or callbacks"),
        ((None, "no function", print), TypeError, "callable"),
        ((None, None, None), TypeError, "NoneType cannot be saved"),
        ((object(), None, None), TypeError, r"object cannot be saved .*snapshot\(mode, tags\)"),
        ((Lookalike(), None, None), TypeError, "LLM cannot be saved"),
    ],
)
def test_what_cannot_be_called_is_refused(arguments, error, match):
    with pytest.raises(error, match=match):
        resolve_adapter(*arguments)


@pytest.mark.parametrize("engine_class", [vllm.LLM, vllm.AsyncLLM, vllm.AsyncLLMEngine, MyEngine])
def test_vllm_engines_are_known_by_their_class(engine_class):
    adapter = resolve_adapter(engine_class())
    assert isinstance(adapter, VLLMAdapter)
    assert adapter.name == "vllm"
    assert (adapter.supported_modes, adapter.default_mode) == (("offload", "discard"), "offload")
    assert adapter.tags == ("weights", "kv_cache")


@pytest.mark.parametrize(("mode", "level"), [("offload", 1), ("discard", 2)])
def test_vllm_engine_sleeps_at_the_level_of_the_mode_and_wakes_up_by_tags(mode, level):
    engine = vllm.LLM()
    adapter = resolve_adapter(engine)
    adapter.snapshot(mode, adapter.tags)
    assert engine.awake == set()
    assert (engine.weights is None) is (mode == "discard")
    adapter.restore(["weights"])
    assert engine.awake == {"weights"}
    adapter.restore([])
    assert engine.awake == {"weights", "kv_cache"}
    assert engine.calls == [("sleep", level), ("wake_up", ["weights"]), ("wake_up", None)]


def test_async_vllm_engine_gives_coroutines():
    async def turn() -> None:
        engine = vllm.AsyncLLM()
        adapter = resolve_adapter(engine)
        await adapter.snapshot("offload", ())
        assert engine.awake == set()
        await adapter.restore(adapter.tags)
        assert engine.awake == {"weights", "kv_cache"}

    asyncio.run(turn())


def test_object_with_both_methods_is_snapshottable():
    model = Model()
    adapter = resolve_adapter(model)
    assert isinstance(adapter, SnapshottableAdapter)
    assert (adapter.supported_modes, adapter.default_mode, adapter.tags) == (("offload", "discard"), "offload", ())
    adapter.snapshot("offload", ("a",))
    adapter.restore(("a",))
    assert model.calls == [("snapshot", "offload", ["a"]), ("restore", ["a"])]


def test_object_may_say_itself_what_it_can_do():
    adapter = resolve_adapter(Particular())
    assert (adapter.supported_modes, adapter.default_mode, adapter.tags) == (("discard",), "discard", ("weights",))


def test_object_without_offload_is_discarded_by_default():
    model = Model()
    model.supported_modes = ["discard"]
    assert resolve_adapter(model).default_mode == "discard"


def test_adapter_of_ones_own_is_taken_as_it_is():
    class Own(WorkloadAdapter):
        name = "own"

        def snapshot(self, mode, tags):
            return None

        def restore(self, tags):
            return None

    own = Own()
    assert resolve_adapter(own) is own
