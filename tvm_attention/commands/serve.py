"""``tvm-attention serve`` and ``tvm-attention tracker``: the device's side of tuning, and who keeps a list
of devices."""

from __future__ import annotations

import argparse
import json
import sys

from tvm_attention.boards.address import Address, checked_key
from tvm_attention.boards.description import BoardDescription, describe_this_board
from tvm_attention.boards.serving import (
    SERVER_PORT,
    TRACKER_PORT,
    bind,
    lend_gpu,
    serve,
    track,
)
from tvm_attention.caches import cpu_numbers
from tvm_attention.commands.arguments import Commands, add_command, add_json, whole_number
from tvm_attention.commands.ending import OK
from tvm_attention.commands.output import console, counted, print_json, say

_ANY = "0.0.0.0"
_TRUST = (
    "Whoever reaches this port can run programs as you: open it to a network that you trust alone."
)


def add(commands: Commands) -> None:
    """The parsers of ``serve`` and ``tracker``."""
    parser = add_command(commands, "serve", "let other machines tune on this one", run_serve)
    parser.add_argument("--key", required=True, help="name that boards of this kind share")
    parser.add_argument("--tracker", metavar="HOST:PORT", help="register with a tracker")
    parser.add_argument(
        "--cores", metavar="LIST", help="measure on these logical processors, such as 4-7"
    )
    parser.add_argument(
        "--gpu",
        type=whole_number(0, 1023),
        metavar="N",
        help="which of several GPUs to lend, as the driver numbers them; default the first",
    )
    _add_place(parser, SERVER_PORT)
    parser = add_command(commands, "tracker", "keep a list of boards for tuning", run_tracker)
    _add_place(parser, TRACKER_PORT)


def _add_place(parser: argparse.ArgumentParser, port: int) -> None:
    parser.add_argument("--host", default=_ANY, help=f"address to listen at; default {_ANY}, all")
    parser.add_argument(
        "--port", type=whole_number(1, 65534), default=port, metavar="N", help=f"default {port}"
    )
    add_json(parser)
    parser.description = f"{parser.description} {_TRUST}"


def run_serve(options: argparse.Namespace) -> int:
    """Serves until an interrupt."""
    key = checked_key(options.key)
    tracker = None if options.tracker is None else Address.of(options.tracker)
    if options.cores is not None:
        bind(cpu_numbers(options.cores))
    if options.gpu is not None:
        lend_gpu(options.gpu)
    board = describe_this_board()

    def started(port: int) -> None:
        known = "" if tracker is None else f", known to the tracker {tracker}"
        serving = f"serving key {key} on port {port}{known}; Ctrl-C ends it"
        facts = {"key": key, "port": port, "board": json.loads(board.to_json())}
        _say(options, [*hardware_lines(board), serving], facts)

    def waiting(why: str) -> None:
        print(f"tvm-attention: waiting for the tracker: {why}", file=sys.stderr, flush=True)

    serve(options.host, options.port, key, tracker, started=started, waiting=waiting)
    return OK


def run_tracker(options: argparse.Namespace) -> int:
    """Tracks until an interrupt."""

    def started(port: int) -> None:
        _say(options, [f"tracking boards on port {port}; Ctrl-C ends it"], {"port": port})

    track(options.host, options.port, started)
    return OK


def _say(options: argparse.Namespace, lines: list[str], facts: dict[str, object]) -> None:
    """At once, for whoever waits for it in a file or a pipe."""
    if options.json:
        print_json(facts)
    else:
        out = console()
        for line in lines:
            say(out, line)
    sys.stdout.flush()


def hardware_lines(board: BoardDescription) -> list[str]:
    """What a board is, for people."""
    hardware = board.hardware
    kinds = ", ".join(f"{count} {kind}" for kind, count in board.cores.items())
    governed = ", ".join(board.governors) or "not known"
    gpu = [] if board.gpu is None else [f"GPU {board.gpu}"]
    gpu += [board.gpu_problem] if board.gpu_problem else []
    return [
        f"{hardware.model or 'processor without a name'}: target {hardware.name} ({hardware.isa}), "
        f"{counted(hardware.cores, 'core')}",
        f"processors {board.cpus} ({kinds}), clock governor {governed}",
        *gpu,
        f"{board.system}, TVM {board.tvm}, tvm-attention {board.library}",
    ]
