"""Asking TVM's tracker for boards, with time limits: its own client waits for ever."""

from __future__ import annotations

import socket
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tvm_attention._tvm import import_tvm
from tvm_attention.boards.address import Address
from tvm_attention.errors import TuningError

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 10.0
_SHOWN = 8  # keys of other boards in a message


class NoBoardError(TuningError):
    """No board with the key is free."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A board's server, and what it takes as the client's key."""

    address: Address
    match_key: str


class Tracker:
    """A tracker at an address. Everything raises TuningError where it does not answer as one."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def boards(self) -> Counter[str]:
        """How many boards there are of each key, in use or free."""
        with self._connected() as (connection, base):
            base.sendjson(connection, [base.TrackerCode.SUMMARY])
            code, summary = base.recvjson(connection)
            if code != base.TrackerCode.SUCCESS:
                raise ValueError(f"code {code}")
            keys = [str(server["key"]) for server in summary["server_info"]]
            return Counter(key.partition(":")[2] for key in keys)

    def require(self, key: str) -> int:
        """How many boards have the key. Raises TuningError, naming the keys there are, if none has."""
        boards = self.boards()
        if not boards[key]:
            names = [name if name.isprintable() else ascii(name) for name in sorted(boards)]
            others = f"boards with key {', '.join(names[:_SHOWN])}" if names else "no board"
            raise TuningError(
                f"key {key!r}: expected a board with it behind the tracker {self._address}, which has "
                f"{others}; start one by `tvm-attention serve --tracker {self._address} --key {key}`"
            )
        return boards[key]

    def request(self, key: str, seconds: float) -> Entry:
        """A board with the key, nobody else's until its session ends. Raises NoBoardError if none
        becomes free in that time."""
        with self._connected() as (connection, base):
            base.sendjson(connection, [base.TrackerCode.REQUEST, key, "", 1])
            connection.settimeout(seconds)
            try:
                code, (host, port, match_key) = base.recvjson(connection)
            except TimeoutError:
                raise NoBoardError(f"no board with key {key!r} is free") from None
            if code != base.TrackerCode.SUCCESS:
                raise ValueError(f"code {code}")
            return Entry(Address(str(host), int(port)), str(match_key))

    @contextmanager
    def _connected(self) -> Iterator[tuple[socket.socket, Any]]:
        import_tvm()
        from tvm.rpc import base

        try:
            with _opened(self._address) as connection:
                connection.sendall(struct.pack("<i", base.RPC_TRACKER_MAGIC))
                if base.recvall(connection, 4) != struct.pack("<i", base.RPC_TRACKER_MAGIC):
                    raise ValueError("no tracker's greeting")
                yield connection, base
        except (OSError, ValueError, KeyError, TypeError, IndexError, struct.error) as error:
            raise TuningError(
                f"tracker {self._address}: expected TVM's tracker there, got: {error}; start it by "
                f"`tvm-attention tracker`, and see that this machine reaches it"
            ) from error


def _opened(address: Address) -> socket.socket:
    connection = socket.create_connection((address.host, address.port), timeout=CONNECT_SECONDS)
    connection.settimeout(ANSWER_SECONDS)
    return connection


def greets_as_tracker(address: Address) -> bool:
    """Whether what listens there is a tracker; a board's own server ends the connection instead. Raises
    TuningError where nothing listens or answers."""
    import_tvm()
    from tvm.rpc import base

    try:
        with _opened(address) as connection:
            connection.sendall(struct.pack("<i", base.RPC_TRACKER_MAGIC))
            answer = connection.recv(4)
    except TimeoutError as error:
        raise TuningError(
            f"{address}: expected a tracker or a board, got no answer in {ANSWER_SECONDS:g} s; a board is "
            f"silent while another session holds it"
        ) from error
    except ConnectionResetError:
        return False
    except OSError as error:
        raise TuningError(
            f"{address}: expected a tracker or a board there, got: {error.strerror or error}; start "
            f"`tvm-attention tracker` or, on the board, `tvm-attention serve`, and see that this machine "
            f"reaches it"
        ) from error
    return answer == struct.pack("<i", base.RPC_TRACKER_MAGIC)
