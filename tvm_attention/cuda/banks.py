"""How many passes over the banks of shared memory an access of a warp takes."""

from __future__ import annotations

from functools import cache

BANKS, WORD, LANES = 32, 4, 32
_PASS_BYTES = BANKS * WORD


def passes(addresses: list[int], width: int) -> int:
    """Passes of loads of ``width`` bytes at byte addresses, one a lane: each pass gives every bank one word,
    which all lanes that want it receive. Wide loads go by parts of the warp that want 128 bytes."""
    share = max(1, _PASS_BYTES // max(width, WORD))
    found = 0
    for start in range(0, len(addresses), share):
        banks: dict[int, set[int]] = {}
        for address in addresses[start : start + share]:
            for word in range(address // WORD, (address + width - 1) // WORD + 1):
                banks.setdefault(word % BANKS, set()).add(word)
        found += max(len(words) for words in banks.values())
    return found


@cache
def lane_passes(across: int, row: int, column: int, width: int) -> int:
    """Passes of a load of ``width`` bytes where lane (i, j), of ``across`` lanes a row, is at the byte
    i * row + j * column."""
    lanes = (divmod(n, across) for n in range(LANES))
    return passes([i * row + j * column for i, j in lanes], width)
