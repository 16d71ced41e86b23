"""Functions of assembly text as basic blocks, and the natural loops among them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_LABEL = re.compile(r"(\.L\w+):")
_BRANCHES = {
    "x86": re.compile(r"(j[a-z]+)\s+(\.L\w+)$"),
    "arm": re.compile(r"(b|b\.\w+|cbn?z|tbn?z)\s+(?:.*,\s*)?(\.L\w+)$"),
}
_ALWAYS = ("jmp", "b")
_COMMENT = {"x86": "#", "arm": "//"}


@dataclass
class Block:
    """Instructions that are all executed or none, and the numbers of the blocks that may follow."""

    label: str
    instructions: list[str] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)
    falls_through: bool = True
    followers: list[int] = field(default_factory=list)


@dataclass
class Loop:
    """A natural loop: its blocks, the loops right inside it, and ``own``, the blocks in none of those."""

    head: int
    blocks: set[int]
    inner: list[Loop] = field(default_factory=list)

    @property
    def own(self) -> list[int]:
        inside = {block for loop in self.inner for block in loop.blocks}
        return sorted(self.blocks - inside)


def function_blocks(text: str, kind: str, name: str) -> list[Block]:
    """The blocks of one function, in the order of the text; ``kind`` is "x86" or "arm"."""
    lines = iter(text.splitlines())
    start = re.compile(rf"(\.L)?{re.escape(name)}:")
    if not any(start.match(line) for line in lines):
        raise ValueError(f"no function {name}")
    blocks = [Block("entry")]
    for line in _instructions(lines, kind):
        label = _LABEL.match(line)
        if label:
            if label[1].startswith(".LBB"):
                blocks.append(Block(label[1]))
            continue
        blocks[-1].instructions.append(line)
        branch = _BRANCHES[kind].match(line)
        if branch:
            blocks[-1].targets.append(branch[2])
            blocks[-1].falls_through = branch[1] not in _ALWAYS
        elif line.startswith("ret"):
            blocks[-1].falls_through = False
        else:
            continue
        blocks.append(Block(f"after {len(blocks)}"))
    _link(blocks)
    return blocks


def _instructions(lines: Iterator[str], kind: str) -> Iterator[str]:
    for line in lines:
        text = line.split(_COMMENT[kind])[0].strip().replace("\t", " ")
        if text.startswith(".Lfunc_end"):
            return
        if text and not text.startswith(".Ltmp") and (text[0] != "." or _LABEL.match(text)):
            yield text


def _link(blocks: list[Block]) -> None:
    index = {block.label: n for n, block in enumerate(blocks)}
    for n, block in enumerate(blocks):
        block.followers = [index[t] for t in block.targets if t in index]
        if block.falls_through and n + 1 < len(blocks):
            block.followers.append(n + 1)


def natural_loops(blocks: list[Block]) -> list[Loop]:
    """The outermost loops, each with those inside it, in program order."""
    order = _reverse_postorder(blocks)
    place = {block: n for n, block in enumerate(order)}
    before: list[list[int]] = [[] for _ in blocks]
    for n in order:
        for follower in blocks[n].followers:
            before[follower].append(n)
    dominator = _dominators(order, place, before)
    loops: dict[int, Loop] = {}
    for n in order:
        for head in blocks[n].followers:
            if _dominates(head, n, dominator):
                loop = loops.setdefault(head, Loop(head, {head}))
                _add_body(loop.blocks, n, before)
    return _nested(list(loops.values()), place)


def _reverse_postorder(blocks: list[Block]) -> list[int]:
    order: list[int] = []
    seen, stack = {0}, [(0, iter(blocks[0].followers))]
    while stack:
        block, followers = stack[-1]
        unseen = next((f for f in followers if f not in seen), None)
        if unseen is None:
            order.append(block)
            stack.pop()
        else:
            seen.add(unseen)
            stack.append((unseen, iter(blocks[unseen].followers)))
    return order[::-1]


def _dominators(order: list[int], place: dict[int, int], before: list[list[int]]) -> dict[int, int]:
    """The immediate dominator of each block (Cooper, Harvey and Kennedy's iteration)."""
    dominator = {0: 0}
    changed = True
    while changed:
        changed = False
        for block in order[1:]:
            known = [b for b in before[block] if b in dominator]
            common = known[0]
            for other in known[1:]:
                while other != common:
                    if place[other] > place[common]:
                        other = dominator[other]
                    else:
                        common = dominator[common]
            if dominator.get(block) != common:
                dominator[block], changed = common, True
    return dominator


def _dominates(above: int, block: int, dominator: dict[int, int]) -> bool:
    while block not in (above, 0):
        block = dominator[block]
    return block == above


def _add_body(body: set[int], end: int, before: list[list[int]]) -> None:
    todo = [end]
    while todo:
        block = todo.pop()
        if block not in body:
            body.add(block)
            todo += before[block]


def _nested(loops: list[Loop], place: dict[int, int]) -> list[Loop]:
    outermost: list[Loop] = []
    for loop in loops:
        around = [o for o in loops if loop.head in o.blocks and len(o.blocks) > len(loop.blocks)]
        parent = min(around, key=lambda o: len(o.blocks), default=None)
        (outermost if parent is None else parent.inner).append(loop)
    for siblings in (outermost, *(loop.inner for loop in loops)):
        siblings.sort(key=lambda loop: min(place[b] for b in loop.blocks))
    return outermost
