"""Targets: detection from made-up machines, names, levels, and what LLVM is told."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import archspec.cpu
import pytest

from tvm_attention import environment
from tvm_attention.caches import Cores
from tvm_attention.errors import InvalidValueError, UnsupportedError
from tvm_attention.isa import ARM_CORES, llvm_name
from tvm_attention.processor import Processor, read_processor
from tvm_attention.target import (
    LEVELS,
    HardwareTarget,
    cut_down,
    detect_target,
    features_of,
    host_target,
    levels_below,
    named_target,
)

CORES = Cores(count=4, l1d=32768, l2=2**20, l3=2**25)


def x86(micro: str = "icelake", *, lacking: str = "") -> HardwareTarget:
    """A machine with exactly a micro-architecture's flags, less some."""
    known = archspec.cpu.TARGETS[micro]
    flags = " ".join(known.features - set(lacking.split()))
    text = f"vendor_id: {known.vendor}\nmodel name: Made-up {micro}\nflags: {flags}\n"
    return host_target(read_processor("x86_64", text), CORES)


@pytest.mark.parametrize("level", LEVELS["x86"])
def test_levels_need_what_llvm_expects(level: str) -> None:
    needed = features_of(level)
    assert {"sse4.2", "popcnt", "ssse3", "cx16", "sahf"} <= needed
    assert ({"avx2", "fma", "bmi", "bmi2", "lzcnt", "movbe", "f16c"} <= needed) == (
        level != "x86-64-v2"
    )
    assert ("avx512vl" in needed) == (level == "x86-64-v4")


def test_each_level_contains_the_one_below() -> None:
    v2, v3, v4 = map(features_of, LEVELS["x86"])
    assert v2 < v3 < v4
    assert features_of("aarch64") == {"neon"}


@pytest.mark.parametrize("name", ["x86-64-v5", "", "icelake", "../x86-64-v3", "x86-64-v3\n"])
def test_features_of_unknown_level(name: str) -> None:
    with pytest.raises(InvalidValueError, match="expected one of x86-64-v2"):
        features_of(name)


def test_host_of_a_known_micro_architecture() -> None:
    host = x86("icelake")
    assert (host.name, host.micro_architecture) == ("icelake", "icelake")
    assert (host.kind, host.isa) == ("x86", "x86-64-v4")
    assert (host.cores, host.l1d, host.l2, host.l3) == (4, 32768, 2**20, 2**25)
    assert host.model == "Made-up icelake"
    assert not host.is_generic
    assert levels_below(host) == ("x86-64-v3", "x86-64-v2")


def test_host_that_hides_avx512_is_no_longer_icelake() -> None:
    host = x86("icelake", lacking="avx512f avx512bw avx512vl avx512dq avx512cd")
    assert host.isa == "x86-64-v3"
    assert host.name == "skylake"
    assert "avx512f" not in host.features


def test_host_known_by_its_level_alone() -> None:
    found = Processor("x86", "x86_64_v3", features_of("x86-64-v3") | {"aes"}, "")
    host = host_target(found, CORES)
    assert (host.name, host.micro_architecture) == ("x86-64-v3", "x86_64_v3")
    assert host.is_generic
    assert levels_below(host) == ("x86-64-v2",)


def test_host_below_the_lowest_level() -> None:
    with pytest.raises(UnsupportedError, match=r"expected x86-64-v2 or newer.*sse4\.2"):
        x86("core2")
    with pytest.raises(UnsupportedError, match="neon"):
        host_target(Processor("arm", "aarch64", frozenset({"crc"}), ""), CORES)


def test_arm_host() -> None:
    found = Processor("arm", "cortex_a76", frozenset({"neon", "dotprod"}), "Raspberry Pi 5")
    host = host_target(found, CORES)
    assert (host.kind, host.isa, host.name) == ("arm", "aarch64", "cortex_a76")
    assert levels_below(host) == ()
    target = host.llvm()
    assert target["mcpu"] == "cortex-a76"
    mattr = target["mattr"]
    assert isinstance(mattr, list)
    assert {"+neon", "+dotprod", "-sve", "-i8mm"} <= set(mattr)


def test_facts_are_the_fields() -> None:
    host = x86("zen3")
    facts = host.facts()
    assert all(getattr(host, name) == value for name, value in facts.items())
    assert set(facts) == {
        *("kind", "isa", "micro_architecture", "model", "cores", "l1d", "l2", "l3")
    }


@pytest.mark.parametrize(
    ("asked", "name", "isa", "mcpu"),
    [
        ("x86-64-v3", "x86-64-v3", "x86-64-v3", "x86-64-v3"),
        (" X86_64_V4 ", "x86-64-v4", "x86-64-v4", "x86-64-v4"),
        ("icelake", "icelake", "x86-64-v4", "icelake-client"),
        ("skylake-avx512", "skylake_avx512", "x86-64-v4", "skylake-avx512"),
        ("zen4", "zen4", "x86-64-v4", "znver4"),
        ("zen6", "zen6", "x86-64-v4", "znver5"),  # newer than the LLVM in use
        ("aarch64", "aarch64", "aarch64", "generic"),
        ("cortex-a72", "cortex_a72", "aarch64", "cortex-a72"),
        ("cortex_a53", "cortex_a53", "aarch64", "cortex-a53"),
        ("neoverse-v1", "neoverse_v1", "aarch64", "neoverse-v1"),
        ("m1", "m1", "aarch64", "apple-m1"),
    ],
)
def test_named_targets(asked: str, name: str, isa: str, mcpu: str) -> None:
    target = named_target(asked, cores=3)
    assert (target.name, target.isa, target.cores) == (name, isa, 3)
    assert target.llvm()["mcpu"] == mcpu
    assert (target.l1d, target.l2, target.l3, target.model) == (0, 0, 0, "")
    assert features_of(isa) <= target.features


@pytest.mark.parametrize(
    "name", ["", "pentium9", "x86-64-v5", "x86-64", "core2", "power9", "armv8.2a", "../icelake"]
)
def test_unknown_names(name: str) -> None:
    with pytest.raises(InvalidValueError, match="expected"):
        named_target(name)


def test_long_names_are_shortened_in_the_message() -> None:
    with pytest.raises(InvalidValueError) as caught:
        named_target("z" * 10_000)
    assert len(str(caught.value)) < 300


def test_cut_down_to_a_level_keeps_the_machine() -> None:
    host = x86("icelake")
    target = cut_down(host, "x86-64-v3")
    assert (target.name, target.isa) == ("x86-64-v3", "x86-64-v3")
    assert target.features == features_of("x86-64-v3")
    assert target.facts() == {**host.facts(), "isa": "x86-64-v3"}
    assert "mattr" not in target.llvm()


def test_cut_down_to_an_older_micro_architecture() -> None:
    target = cut_down(x86("icelake"), "haswell")
    assert (target.name, target.isa, target.micro_architecture) == (
        *("haswell", "x86-64-v3", "haswell"),
    )
    assert "avx512f" not in target.features


def test_cut_down_to_its_own_name_changes_nothing() -> None:
    host = x86("icelake")
    assert cut_down(host, "icelake") is host


@pytest.mark.parametrize(
    ("name", "why"), [("x86-64-v4", "avx512"), ("zen4", "lacks"), ("cortex-a72", "is x86")]
)
def test_cut_down_to_what_the_host_cannot_run(name: str, why: str) -> None:
    with pytest.raises(InvalidValueError, match=why) as caught:
        cut_down(x86("haswell"), name)
    assert "x86-64-v3" in str(caught.value)


def test_llvm_is_told_what_a_virtual_machine_hides() -> None:
    host = x86("icelake")
    hiding = replace(host, features=host.features - {"vaes", "gfni"})
    mattr = hiding.llvm()["mattr"]
    assert isinstance(mattr, list)
    assert {"-vaes", "-gfni", "+avx512f"} <= set(mattr)
    first_removal = next(i for i, feature in enumerate(mattr) if feature[0] == "-")
    assert all(feature[0] == "-" for feature in mattr[first_removal:])


def test_another_machine_is_named_in_the_triple(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert named_target("cortex-a72").llvm()["mtriple"] == "aarch64-linux-gnu"
    assert "mtriple" not in named_target("x86-64-v3").llvm()
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert named_target("x86-64-v3").llvm()["mtriple"] == "x86_64-linux-gnu"


def test_detection_obeys_the_override(monkeypatch: pytest.MonkeyPatch) -> None:
    host = x86("icelake")
    monkeypatch.setattr("tvm_attention.target._local_target", lambda cpus: host)
    monkeypatch.delenv(environment.TARGET, raising=False)
    assert detect_target() is host
    assert detect_target("x86-64-v2").isa == "x86-64-v2"
    monkeypatch.setenv(environment.TARGET, "x86-64-v3")
    assert detect_target().name == "x86-64-v3"
    assert detect_target("x86-64-v2").isa == "x86-64-v2"
    monkeypatch.setenv(environment.TARGET, "sparc")
    with pytest.raises(InvalidValueError, match=rf"{environment.TARGET}: .*sparc"):
        detect_target()


def test_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(environment.TARGET, raising=False)
    host = detect_target()
    assert host.cores >= 1
    assert features_of(host.isa) <= host.features
    assert named_target(host.name).kind == host.kind


LLVM_CHECK = """
import tvm
from tvm_attention.isa import ARM_CORES, FEATURE_NAMES
from tvm_attention.target import LEVELS, _micro_architectures, detect_target, named_target
features = tvm.get_global_func("target.llvm_get_cpu_features")
names = [*_micro_architectures(), *(core for core, _ in ARM_CORES.values()), *LEVELS["x86"]]
older = {"nocona", "core2", "k10"}  # below x86-64-v2
for target in [detect_target(), *map(named_target, sorted(set(names) - older))]:
    known = set(FEATURE_NAMES[target.kind].values())
    got = set(features(tvm.target.Target(target.llvm()))) & known
    assert got == target.features, (target.name, got ^ target.features)
    print(target.name)
"""


def test_llvm_agrees_on_every_name_and_feature() -> None:
    pytest.importorskip("tvm")
    done = subprocess.run(
        [sys.executable, "-c", LLVM_CHECK], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stdout.split()) > 50
    # How LLVM and TVM report a name they do not know.
    assert "not a recognized" not in done.stderr
    assert "is not valid" not in done.stderr


def test_arm_cores_are_unknown_to_archspec() -> None:
    parts = {m.cpu_part for m in archspec.cpu.TARGETS.values() if m.vendor == "ARM"}
    assert not parts & set(ARM_CORES)
    assert llvm_name("cortex_a78ae") == "cortex-a78ae"


def test_detection_needs_no_compiler() -> None:
    code = (
        "import sys, tvm_attention.database; from tvm_attention.target import detect_target\n"
        "detect_target(); bad = {'tvm', 'torch', 'xgboost', 'tvm_ffi'} & set(sys.modules)\n"
        "sys.exit(repr(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
