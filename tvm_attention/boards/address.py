"""Where a tracker or a board listens."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tvm_attention.errors import InvalidValueError

_KEY = re.compile(r"[A-Za-z0-9_.+-]{1,64}")


@dataclass(frozen=True, slots=True)
class Address:
    """A host's name or number, and a port."""

    host: str
    port: int

    @classmethod
    def of(cls, text: str) -> Address:
        """From "HOST:PORT", an IPv6 number in brackets. Raises InvalidValueError for anything else."""
        host, colon, port = text.strip().rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        host = host[1:-1] if bracketed else host
        if not colon or not host or (":" in host and not bracketed) or re.search(r"\s", host):
            raise InvalidValueError(f"address: expected HOST:PORT, got {text[:80]!r}")
        if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 1 << 16):
            raise InvalidValueError(f"address: expected a port from 1 to 65535, got {text[:80]!r}")
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def checked_key(key: str) -> str:
    """The key that boards of a kind have in common. Raises InvalidValueError for what cannot be one."""
    if not _KEY.fullmatch(key):
        raise InvalidValueError(
            f"key: expected 1 to 64 letters, digits and any of _.+-, got {key[:80]!r}"
        )
    return key
