"""The device plugin against a kubelet that restarts, refuses, and is not there."""

from __future__ import annotations

import asyncio
import itertools
import re
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import grpc
import pytest
from container import Container
from fake_kubelet import DEADLINE_S, FakeKubelet, serving
from hypothesis import given
from hypothesis import strategies as st

from gpu_mock_kubernetes import device_plugin, installer, mock
from gpu_mock_kubernetes.config import NodeFolders, Recipe
from gpu_mock_kubernetes.device_plugin import Offered
from gpu_mock_kubernetes.folder_watch import FolderWatch
from gpu_mock_kubernetes.mock import MockDevice
from kubelet_api import device_plugin_pb2 as pb


def plugin(folders: NodeFolders) -> AbstractAsyncContextManager[asyncio.Task[None]]:
    return serving(device_plugin.serve(folders, lambda: None))


def uuids(folders: NodeFolders) -> list[str]:
    return [one.uuid for one in mock.look(folders.libraries / "gpu-mock", folders.state).devices]


async def test_it_registers_and_offers_all_devices(
    source: Path, folders: NodeFolders, recipe: Recipe, kubelet: FakeKubelet
) -> None:
    installer.install(source, recipe, folders)
    async with plugin(folders):
        await kubelet.until(lambda: kubelet.health == dict.fromkeys(uuids(folders), "Healthy"))
    [registration] = kubelet.registrations
    assert re.fullmatch(r"nvidia\.com-gpu-[0-9a-f]{8}\.sock", registration.endpoint)
    assert registration == pb.RegisterRequest(
        version="v1beta1", endpoint=registration.endpoint, resource_name="nvidia.com/gpu",
        options=pb.DevicePluginOptions(),
    )  # fmt: skip


async def test_what_is_allocated_is_what_a_container_sees(
    source: Path, folders: NodeFolders, recipe: Recipe, kubelet: FakeKubelet
) -> None:
    installer.install(source, recipe, folders)
    first, second = uuids(folders)
    async with plugin(folders):
        await kubelet.until(lambda: len(kubelet.health) == 2)
        answers = await kubelet.allocate([second], [first, second])
    assert answers == [
        pb.ContainerAllocateResponse(
            envs={"NVIDIA_VISIBLE_DEVICES": second}, cdi_devices=[pb.CDIDevice(name=f"nvidia.com/gpu={second}")]
        ),
        pb.ContainerAllocateResponse(
            envs={"NVIDIA_VISIBLE_DEVICES": f"{first},{second}"},
            cdi_devices=[pb.CDIDevice(name=f"nvidia.com/gpu={one}") for one in (first, second)],
        ),
    ]
    for answer, seen in zip(answers, ([second], [first, second]), strict=True):
        with Container(folders, [one.name for one in answer.cdi_devices]) as container:
            assert container.uuids == seen


async def test_a_device_that_is_not_there_is_not_allocated(
    source: Path, folders: NodeFolders, recipe: Recipe, kubelet: FakeKubelet
) -> None:
    installer.install(source, recipe, folders)
    async with plugin(folders):
        await kubelet.until(lambda: len(kubelet.health) == 2)
        with pytest.raises(grpc.aio.AioRpcError, match="has no device GPU-gone"):
            await kubelet.allocate(["GPU-gone"])


async def test_a_lost_device_is_unhealthy_until_it_is_back(
    source: Path, folders: NodeFolders, recipe: Recipe, kubelet: FakeKubelet
) -> None:
    installer.install(source, recipe, folders)
    first, second = uuids(folders)
    program = folders.libraries / "gpu-mock"
    async with plugin(folders):
        await kubelet.until(lambda: len(kubelet.health) == 2)
        mock.run(program, folders.state, "inject", "device-lost", "device=1")
        await kubelet.until(lambda: kubelet.health == {first: "Healthy", second: "Unhealthy"})
        mock.run(program, folders.state, "reset")
        await kubelet.until(lambda: kubelet.health == {first: "Healthy", second: "Healthy"})
        mock.run(program, folders.state, "inject", "device-lost", "device=0")
        await kubelet.until(lambda: kubelet.health == {first: "Unhealthy", second: "Healthy"})
        mock.run(program, folders.state, "inject", "device-lost", "device=0", "code=0")
        await kubelet.until(lambda: kubelet.health == {first: "Healthy", second: "Healthy"})


@pytest.mark.parametrize("leaves_its_socket", [False, True])
async def test_it_registers_again_with_a_kubelet_that_was_killed(
    source: Path, folders: NodeFolders, recipe: Recipe, kubelet: FakeKubelet, leaves_its_socket: bool
) -> None:
    installer.install(source, recipe, folders)
    async with plugin(folders):
        for number in range(1, 4):
            await kubelet.until(lambda: kubelet.health == dict.fromkeys(uuids(folders), "Healthy"))
            assert len(kubelet.registrations) == number
            await kubelet.kill()
            if not leaves_its_socket:
                (folders.device_plugins / "kubelet.sock").unlink(missing_ok=True)
            await kubelet.start()
        await kubelet.until(lambda: len(kubelet.health) == 2)
        [answer] = await kubelet.allocate(uuids(folders)[:1])
        assert len(answer.cdi_devices) == 1


async def test_it_waits_for_a_kubelet_that_is_not_there_yet(
    source: Path, folders: NodeFolders, recipe: Recipe
) -> None:
    installer.install(source, recipe, folders)
    async with plugin(folders):
        with FolderWatch(folders.device_plugins) as watch:
            async with asyncio.timeout(DEADLINE_S):
                await watch.changes()  # it serves before it tells anybody
        async with FakeKubelet(folders) as kubelet:
            await kubelet.until(lambda: len(kubelet.health) == 2)


async def test_it_asks_again_when_it_was_refused(
    source: Path, folders: NodeFolders, recipe: Recipe, kubelet: FakeKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_plugin, "RETRY_S", (0.01,))
    kubelet.refuse = grpc.StatusCode.UNAVAILABLE
    installer.install(source, recipe, folders)
    async with plugin(folders):
        await kubelet.until(lambda: len(kubelet.health) == 2)


async def test_devices_come_when_the_driver_comes_and_go_when_it_goes(
    source: Path, folders: NodeFolders, recipe: Recipe, kubelet: FakeKubelet
) -> None:
    async with plugin(folders):
        await kubelet.until(lambda: len(kubelet.registrations) == 1)
        await asyncio.to_thread(installer.install, source, recipe, folders)
        before = uuids(folders)
        await kubelet.until(lambda: set(kubelet.health) == set(before))
        installer.uninstall(folders, patience_s=0.0)
        await kubelet.until(lambda: kubelet.health == {})
        installer.install(source, recipe, folders)
        await kubelet.until(lambda: set(kubelet.health) == set(uuids(folders)))
        assert not set(before) & set(kubelet.health)


async def test_its_socket_goes_when_it_ends(
    source: Path, folders: NodeFolders, recipe: Recipe, kubelet: FakeKubelet
) -> None:
    installer.install(source, recipe, folders)
    async with plugin(folders):
        await kubelet.until(lambda: len(kubelet.health) == 2)
    await kubelet.until(lambda: kubelet.health == {})
    assert [one.name for one in folders.device_plugins.iterdir()] == ["kubelet.sock"]


async def test_what_a_killed_predecessor_left_is_replaced(
    source: Path, folders: NodeFolders, recipe: Recipe, kubelet: FakeKubelet
) -> None:
    installer.install(source, recipe, folders)
    left = folders.device_plugins / device_plugin.SOCKETS.replace("*", "0123abcd")
    left.write_text("not a socket")
    async with plugin(folders):
        await kubelet.until(lambda: len(kubelet.health) == 2)
        assert not left.exists()


async def test_a_folder_that_is_not_there_ends_it(folders: NodeFolders) -> None:
    folders.device_plugins.rmdir()
    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(device_plugin.serve(folders, lambda: None), DEADLINE_S)
    assert caught.value.subgroup(FileNotFoundError)


LISTS = st.lists(
    st.lists(st.builds(MockDevice, st.integers(0, 3), st.just("GPU"), st.just("x"), st.just(4096), st.booleans())),
    min_size=1, max_size=6,
)  # fmt: skip


@given(LISTS)
def test_every_follower_ends_with_the_newest_list(lists: list[list[MockDevice]]) -> None:
    """However many changes come while it is slow, and never the same list twice in a row."""

    async def play() -> None:
        offered = Offered()
        seen: list[list[tuple[MockDevice, ...]]] = [[], []]

        async def follow(number: int) -> None:
            async for devices in offered.follow():
                seen[number].append(devices)
                if devices == tuple(lists[-1]) == offered.devices:
                    newest[number].set()

        newest = [asyncio.Event(), asyncio.Event()]

        tasks = [asyncio.create_task(follow(number)) for number in range(2)]
        for one in lists:
            await offered.put(one)
            if len(one) % 2:
                await asyncio.sleep(0)
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*(one.wait() for one in newest))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for one in seen:
            assert all(a != b for a, b in itertools.pairwise(one))

    asyncio.run(play())
