"""Reading the processor from made-up /proc/cpuinfo texts."""

from __future__ import annotations

from pathlib import Path

import archspec.cpu
import pytest

from tvm_attention.errors import UnsupportedError
from tvm_attention.processor import (
    kind_of,
    llvm_features,
    local_processor,
    read_processor,
    usable_cpus,
)

INTEL_FLAGS = (
    "fpu sse sse2 pni ssse3 fma cx16 sse4_1 sse4_2 movbe popcnt xsave avx f16c lahf_lm abm bmi1 "
    "avx2 bmi2 mmx"
)


def x86_text(flags: str, vendor: str = "GenuineIntel", model: str = "Made-up CPU") -> str:
    block = (
        f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: 6\nmodel\t\t: 167\n"
        f"model name\t: {model}\nflags\t\t: {flags}\nbugs\t\t: spectre_v1\n\n"
    )
    return block * 2


def arm_core(part: str, features: str, implementer: str = "0x41") -> str:
    return (
        f"processor\t: 0\nBogoMIPS\t: 108.00\nFeatures\t: {features}\nCPU implementer\t: "
        f"{implementer}\nCPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: {part}\n\n"
    )


def test_generic_x86() -> None:
    found = read_processor("x86_64", x86_text(INTEL_FLAGS))
    assert (found.kind, found.micro_architecture) == ("x86", "x86_64_v3")
    assert found.model == "Made-up CPU"
    assert {"sse3", "sse4.2", "lzcnt", "bmi", "sahf", "avx2"} <= found.features
    assert "fpu" not in found.features


@pytest.mark.parametrize(
    "name", ["haswell", "skylake", "icelake", "sapphirerapids", "zen2", "zen5"]
)
def test_known_x86(name: str) -> None:
    known = archspec.cpu.TARGETS[name]
    found = read_processor("x86_64", x86_text(" ".join(known.features), known.vendor))
    assert found.micro_architecture == name
    assert found.features == llvm_features("x86", known.features)


def test_model_number_and_name_do_not_count() -> None:
    text = x86_text(INTEL_FLAGS, model="Intel(R) Xeon(R) Platinum 8592+ (Emerald Rapids)")
    assert read_processor("x86_64", text).micro_architecture == "x86_64_v3"


def test_vendor_counts() -> None:
    flags = " ".join(archspec.cpu.TARGETS["zen4"].features)
    assert read_processor("x86_64", x86_text(flags, "GenuineIntel")).micro_architecture != "zen4"
    assert read_processor("x86_64", x86_text(flags, "Unheard")).micro_architecture == "x86_64_v4"


def test_only_what_all_processors_share() -> None:
    text = x86_text(INTEL_FLAGS) + x86_text(INTEL_FLAGS.replace(" avx2", ""))
    found = read_processor("x86_64", text)
    assert "avx2" not in found.features
    assert found.micro_architecture == "nehalem"  # Intel's plain x86-64-v2


@pytest.mark.parametrize("text", ["", "\n\n", "no colon here", "processor: 0\n", "\0\xff: \x1b"])
def test_no_flags_at_all(text: str) -> None:
    found = read_processor("x86_64", text)
    assert (found.micro_architecture, found.features, found.model) == ("x86_64", frozenset(), "")


def test_model_is_one_printable_line() -> None:
    found = read_processor("x86_64", x86_text("sse2", model="A\x1b[31m \t  B" + "C" * 500))
    assert found.model.startswith("A [31m B")
    assert found.model.isprintable()
    assert len(found.model) == 128


def test_raspberry_pi_4_lacks_the_crypto_of_its_core() -> None:
    text = arm_core("0xd08", "fp asimd evtstrm crc32 cpuid") * 4
    found = read_processor("aarch64", text, "Raspberry Pi 4 Model B Rev 1.4")
    assert (found.kind, found.micro_architecture) == ("arm", "cortex_a72")
    assert found.features == {"neon", "crc"}
    assert found.model == "Raspberry Pi 4 Model B Rev 1.4"


def test_a_cortex_a53_is_no_a72() -> None:
    flags = "fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid"
    found = read_processor("aarch64", arm_core("0xd03", flags))
    assert found.micro_architecture == "cortex_a53"
    assert found.features == {"neon", "crc"}


@pytest.mark.parametrize(
    ("part", "implementer", "name"),
    [
        ("0xd0c", "0x41", "neoverse_n1"),
        ("0xd40", "0x41", "neoverse_v1"),
        ("0xd42", "0x41", "cortex_a78ae"),
        ("0xD0B", "0X41", "cortex_a76"),
        ("0x022", "0x61", "m1"),
        ("0xac3", "0xc0", "ampere1"),
        ("0xd0b", "0x51", "aarch64"),  # another maker's part number
        ("0xfff", "0x41", "aarch64"),
        ("", "", "aarch64"),
    ],
)
def test_arm_parts(part: str, implementer: str, name: str) -> None:
    found = read_processor("aarch64", arm_core(part, "fp asimd asimddp", implementer))
    assert found.micro_architecture == name
    assert found.features == {"neon", "dotprod"}


def test_big_little() -> None:
    little, big = arm_core("0xd05", "fp asimd asimddp sve"), arm_core("0xd0b", "fp asimd asimddp")
    assert read_processor("aarch64", little * 6 + big * 2).micro_architecture == "cortex_a55"
    found = read_processor("aarch64", little * 4 + big * 4)
    assert found.micro_architecture == "cortex_a76"
    assert found.features == {"neon", "dotprod"}


def test_kinds() -> None:
    assert {kind_of(machine) for machine in ("x86_64", "AMD64")} == {"x86"}
    assert {kind_of(machine) for machine in ("aarch64", "arm64")} == {"arm"}
    for machine in ("armv7l", "riscv64", "i686", ""):
        with pytest.raises(UnsupportedError, match="expected x86_64 or aarch64"):
            kind_of(machine)


def test_local_from_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(arm_core("0xd0b", "fp asimd"))
    board = tmp_path / "firmware/devicetree/base"
    board.mkdir(parents=True)
    (board / "model").write_bytes(b"Raspberry Pi 5\0")
    found = local_processor(tmp_path, cpuinfo)
    assert (found.micro_architecture, found.model) == ("cortex_a76", "Raspberry Pi 5")


def test_local_without_cpuinfo_asks_archspec(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(archspec.cpu, "host", lambda: archspec.cpu.TARGETS["zen3"])
    monkeypatch.setattr(archspec.cpu, "brand_string", lambda: None)
    found = local_processor(tmp_path, tmp_path / "none")
    assert (found.kind, found.micro_architecture, found.model) == ("x86", "zen3", "")
    assert "avx2" in found.features


def test_usable_cpus() -> None:
    assert usable_cpus()


def test_arm_under_an_emulator_is_asked_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where /proc/cpuinfo is another machine's, features come from the hardware capabilities."""

    class Library:
        @staticmethod
        def getauxval(vector: int) -> int:
            return {16: 1 << 1 | 1 << 20, 26: 1 << 14}[vector]

    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("vendor_id : GenuineIntel\nflags : sse2 avx2\nmodel name : Something\n")
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setattr("ctypes.CDLL", lambda name: Library)
    found = local_processor(tmp_path, cpuinfo)
    assert (found.kind, found.micro_architecture, found.model) == ("arm", "aarch64", "")
    assert found.features == {"neon", "dotprod", "bf16"}
