"""Cache sizes and cores from a made-up /sys."""

from __future__ import annotations

from pathlib import Path

import pytest

from tvm_attention.caches import Cores, read_cores

Cache = tuple[str, str, str, str]  # level, type, size, shared_cpu_list


def add_cpu(sysfs: Path, cpu: int, siblings: str | None, caches: list[Cache]) -> None:
    root = sysfs / f"devices/system/cpu/cpu{cpu}"
    (root / "topology").mkdir(parents=True)
    if siblings is not None:
        (root / "topology/thread_siblings_list").write_text(siblings + "\n")
    for index, values in enumerate(caches):
        folder = root / f"cache/index{index}"
        folder.mkdir(parents=True)
        for name, value in zip(("level", "type", "size", "shared_cpu_list"), values, strict=True):
            (folder / name).write_text(value + "\n")


def desktop(cpu: str) -> list[Cache]:
    return [
        ("1", "Data", "48K", cpu),
        ("1", "Instruction", "32K", cpu),
        ("2", "Unified", "1280K", cpu),
        ("3", "Unified", "24M", "0-3"),
    ]


def test_hardware_threads_of_a_core_count_once(tmp_path: Path) -> None:
    for cpu in range(4):
        pair = "0,2" if cpu in (0, 2) else "1,3"
        add_cpu(tmp_path, cpu, pair, desktop(pair))
    assert read_cores({0, 1, 2, 3}, tmp_path) == Cores(2, 48 << 10, 1280 << 10, 24 << 20)
    assert read_cores({0, 2}, tmp_path).count == 1


def test_a_cache_shared_by_cores_is_divided(tmp_path: Path) -> None:
    for cpu in range(4):
        caches = [("1", "Data", "32K", str(cpu)), ("2", "Unified", "1024K", "0-3")]
        add_cpu(tmp_path, cpu, str(cpu), caches)
    assert read_cores(range(4), tmp_path) == Cores(4, 32 << 10, 256 << 10, 0)


def test_the_smallest_where_cores_differ(tmp_path: Path) -> None:
    add_cpu(tmp_path, 0, "0", [("1", "Data", "64K", "0"), ("2", "Unified", "512K", "0")])
    add_cpu(tmp_path, 1, "1", [("1", "Data", "32K", "1"), ("2", "Unified", "1M", "1")])
    assert read_cores({0, 1}, tmp_path) == Cores(2, 32 << 10, 512 << 10, 0)


def test_nothing_known(tmp_path: Path) -> None:
    assert read_cores({0, 1, 2}, tmp_path) == Cores(3, 0, 0, 0)
    assert read_cores(set(), tmp_path) == Cores(1, 0, 0, 0)


@pytest.mark.parametrize("damage", ["", "K", "-1K", "1e9K", "48 K", "9" * 400 + "K", "48Q"])
def test_damaged_sizes_are_unknown(tmp_path: Path, damage: str) -> None:
    add_cpu(tmp_path, 0, "0", [("1", "Data", damage, "0"), ("2", "Unified", "1M", "0")])
    assert read_cores({0}, tmp_path) == Cores(1, 0, 1 << 20, 0)


@pytest.mark.parametrize("damage", ["", "x", "0-", "0-1-2", "0-9999999999", ",0", "3-1"])
def test_damaged_lists_mean_the_processor_alone(tmp_path: Path, damage: str) -> None:
    add_cpu(tmp_path, 0, damage, [("1", "Data", "32K", damage), ("x", "Unified", "1M", "0")])
    assert read_cores({0}, tmp_path) == Cores(1, 32 << 10, 0, 0)
