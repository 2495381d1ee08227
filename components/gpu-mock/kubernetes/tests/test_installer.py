"""The driver on a node: installed, installed again, changed under running processes, cut off, taken away."""

from __future__ import annotations

import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from container import Container

from gpu_mock_kubernetes import cdi, installer, mock
from gpu_mock_kubernetes.config import ConfigError, NodeFolders, Recipe
from gpu_mock_kubernetes.installer import DevicesInUse, install, uninstall


def uuids(folders: NodeFolders) -> list[str]:
    return [one.uuid for one in mock.look(folders.libraries / "gpu-mock", folders.state).devices]


def all_files(folders: NodeFolders) -> dict[str, tuple[int, int]]:
    """Inode and time of each file, so that any change shows; not of what the mock itself maps."""
    found = {}
    for folder in (folders.driver, folders.state, folders.cdi):
        for path in folder.rglob("*"):
            if path.name not in ("state", "journal"):
                found[str(path)] = (path.lstat().st_ino, path.lstat().st_mtime_ns)
    return found


@pytest.fixture
def newer(source: Path, tmp_path: Path) -> Path:
    """The driver's next version."""
    for name in installer.FILES:
        shutil.copyfile(source / name, tmp_path / name)
        (tmp_path / name).chmod(0o755)
    with (tmp_path / "kernels.ptx").open("a") as out:
        out.write("// newer\n")
    return tmp_path


def test_a_container_gets_the_devices_that_it_was_granted(source: Path, folders: NodeFolders, recipe: Recipe) -> None:
    install(source, recipe, folders)
    first, second = uuids(folders)
    for names, expected in [
        ([first], [first]), ([second], [second]), ([second, first], [first, second]), (["1"], [second]),
        (["all"], [first, second]), ([second, second], [second]),
    ]:  # fmt: skip
        with Container(folders, [cdi.device_name(name) for name in names]) as container:
            assert (container.result, container.uuids) == (0, expected)


def test_installing_again_changes_nothing(source: Path, folders: NodeFolders, recipe: Recipe) -> None:
    install(source, recipe, folders)
    before = all_files(folders)
    del before[str(folders.libraries)], before[str(folders.cdi / cdi.FILE_NAME)]
    install(source, recipe, folders)
    after = all_files(folders)
    assert {path: facts for path, facts in after.items() if path in before} == before


def test_only_root_makes_files_and_all_use_them(source: Path, folders: NodeFolders, recipe: Recipe) -> None:
    install(source, recipe, folders)
    assert folders.state.stat().st_mode & 0o777 == 0o755
    modes = {path.name: path.stat().st_mode & 0o777 for path in folders.state.iterdir()}
    assert modes == {
        "state": 0o666, "locks": 0o666, "journal": 0o666, "device0": 0o666, "device1": 0o666, "offered.json": 0o644,
    }  # fmt: skip
    assert {path.stat().st_mode & 0o555 for path in folders.libraries.iterdir()} == {0o555, 0o444}


def test_part_of_each_device_is_filled_in_advance(source: Path, folders: NodeFolders) -> None:
    install(source, Recipe(gpus="2x80GiB", prefault="1MiB"), folders)
    sizes = [(one.stat().st_size, one.stat().st_blocks * 512) for one in sorted(folders.state.glob("device*"))]
    assert sizes == [(80 << 30, 1 << 20)] * 2


def test_an_update_leaves_devices_and_running_processes_alone(
    source: Path, newer: Path, folders: NodeFolders, recipe: Recipe
) -> None:
    old = install(source, recipe, folders)
    before = uuids(folders)
    with Container(folders, [cdi.device_name("all")]) as container:
        mapped = (folders.libraries / "libcuda.so.1").resolve()
        new = install(newer, recipe, folders)
        assert new != old
        assert uuids(folders) == before
        assert (folders.libraries / "kernels.ptx").read_text().endswith("// newer\n")
        assert str(mapped) in Path(f"/proc/{container.pid}/maps").read_text()
        assert mapped.exists()
        [process] = json.loads(mock.run(folders.libraries / "gpu-mock", folders.state, "show", "--json"))["processes"]
        assert process["pid"] == container.pid
    assert json.loads(folders.offer.read_text())["version"] == new


def test_only_the_last_two_versions_stay(source: Path, newer: Path, folders: NodeFolders, recipe: Recipe) -> None:
    made = [install(source, recipe, folders)]
    for round_number in range(3):
        with (newer / "kernels.ptx").open("a") as out:
            out.write(f"// {round_number}\n")
        made.append(install(newer, recipe, folders))
    assert {one.name for one in (folders.driver / "versions").iterdir()} == set(made[-2:])


@pytest.mark.parametrize("change", [{"gpus": "1x8MiB"}, {"gpus": "2x16MiB"}, {"name": "Other"}, {"prefault": "1MiB"}])
def test_other_devices_are_made_when_nobody_uses_the_old_ones(
    source: Path, folders: NodeFolders, recipe: Recipe, change: dict[str, str]
) -> None:
    install(source, recipe, folders)
    before, spec = uuids(folders), (folders.cdi / cdi.FILE_NAME).read_text()
    with Container(folders, [cdi.device_name("0")]):
        files = all_files(folders)
        with pytest.raises(DevicesInUse, match="Delete their pods"):
            install(source, replace(recipe, **change), folders)
        assert all_files(folders) == files
    inode = folders.state.stat().st_ino
    install(source, replace(recipe, **change), folders)
    assert not set(uuids(folders)) & set(before)
    assert (folders.cdi / cdi.FILE_NAME).read_text() != spec
    assert folders.state.stat().st_ino == inode, "containers have the folder mounted"


def test_devices_of_another_version_of_the_mock_are_replaced(
    source: Path, folders: NodeFolders, recipe: Recipe
) -> None:
    install(source, recipe, folders)
    before = uuids(folders)
    with (folders.state / "state").open("r+b") as state:
        state.seek(4)
        state.write(b"\xff")  # the version of its layout
    install(source, recipe, folders)
    assert not set(uuids(folders)) & set(before)


def test_what_a_cut_off_installation_left_is_made_good(source: Path, folders: NodeFolders, recipe: Recipe) -> None:
    version = install(source, recipe, folders)
    draft = folders.driver / "versions" / f".{version}.draft"
    (folders.driver / "versions" / version).rename(draft)
    (draft / "libcuda.so.1").write_bytes(b"half")
    folders.offer.unlink()
    (folders.state / "device1").unlink()
    install(source, recipe, folders)
    with Container(folders, [cdi.device_name("all")]) as container:
        assert container.uuids == uuids(folders)
    assert not draft.exists()


def test_an_empty_folder_that_the_kubelet_made_for_a_mount_gives_way(
    source: Path, folders: NodeFolders, recipe: Recipe
) -> None:
    folders.libraries.mkdir()
    install(source, recipe, folders)
    assert folders.libraries.is_symlink()


def test_two_installers_at_once_make_one_set_of_devices(source: Path, folders: NodeFolders, recipe: Recipe) -> None:
    seen: list[list[str]] = []

    def work() -> None:
        install(source, recipe, folders)
        seen.append(uuids(folders))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [uuids(folders)] * 4


def test_a_missing_library_is_an_error_and_leaves_no_offer(
    newer: Path, folders: NodeFolders, recipe: Recipe
) -> None:
    (newer / "libcuda.so.1").unlink()
    with pytest.raises(FileNotFoundError, match=r"libcuda\.so\.1"):
        install(newer, recipe, folders)
    assert not folders.offer.exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [({"gpus": "two"}, "two is not understood"), ({"prefault": "some"}, "some is not a size")],
)
def test_a_recipe_that_the_mock_does_not_understand_is_its_error(
    source: Path, folders: NodeFolders, recipe: Recipe, change: dict[str, str], words: str
) -> None:
    with pytest.raises(mock.MockError, match=words):
        install(source, replace(recipe, **change), folders)
    assert not folders.offer.exists()


@pytest.mark.parametrize("name", ['say "GPU"', "back\\slash", "two\nlines", "long" * 16])
def test_names_that_would_break_the_mocks_output_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="MOCK_GPU_NAME"):
        Recipe.from_env({"MOCK_GPU_NAME": name})


def test_uninstalling_leaves_nothing(source: Path, folders: NodeFolders, recipe: Recipe) -> None:
    install(source, recipe, folders)
    others = folders.cdi / "nvidia.yaml"
    others.write_text("of somebody else")
    uninstall(folders, patience_s=0.0)
    left = [path for folder in (folders.driver, folders.state, folders.cdi) for path in folder.rglob("*")]
    assert left == [others]
    uninstall(folders, patience_s=0.0)
    install(source, recipe, folders)


def test_uninstalling_under_a_process_changes_nothing(source: Path, folders: NodeFolders, recipe: Recipe) -> None:
    install(source, recipe, folders)
    with Container(folders, [cdi.device_name("0")]):
        before = all_files(folders)
        for patience_s in (0.0, 0.2):
            with pytest.raises(DevicesInUse):
                uninstall(folders, patience_s)
        assert all_files(folders) == before


def test_uninstalling_waits_for_processes_that_end(source: Path, folders: NodeFolders, recipe: Recipe) -> None:
    install(source, recipe, folders)
    container = Container(folders, [cdi.device_name("0")])
    container.__enter__()
    ending = threading.Timer(0.3, lambda: container.__exit__(None, None, None))
    ending.start()
    uninstall(folders, patience_s=20.0)
    assert list(folders.state.iterdir()) == []
    ending.join()
