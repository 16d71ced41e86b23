"""Numbers with their units, as people read them."""

from __future__ import annotations


def counted(count: int, thing: str) -> str:
    """ "1 record", "2 records"."""
    return f"{count} {thing}" + ("" if count == 1 else "s")


def seconds_text(seconds: float | None) -> str:
    """ "812 us", "1.25 ms" or "2.1 s"; "-" for None."""
    if seconds is None:
        return "-"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} us"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def duration_text(seconds: float) -> str:
    """ "42 s", "3 min 20 s" or "1 h 05 min"."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def size_text(size: int) -> str:
    """Bytes in the binary unit that suits: "48 KiB", "3.4 MiB"."""
    value, units = float(size), ["bytes", "KiB", "MiB", "GiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.3g} {units[0]}" if value < 100 else f"{value:.0f} {units[0]}"
