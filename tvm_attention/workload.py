"""What a kernel is made for: the attention problem, its validation and its length class."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace

from tvm_attention.errors import InvalidTypeError, InvalidValueError, UnsupportedError

MAX_HEAD_DIM = 512
DTYPES = ("float32",)
CAUSAL_KINDS = ("top_left", "bottom_right")

# Rows that share one key-value head (group size x query length) up to which keys, not queries, are the
# long axis: the score of a key is then a dot product that streams the cache once.
DECODE_ROWS = (1, 2, 4, 8)
SHORT_KEYS = 256
MEDIUM_KEYS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWorkload:
    """softmax(scale * Q K^T) V over query (batch, query_heads, query_length, head_dim),
    key (batch, kv_heads, key_length, head_dim) and value (batch, kv_heads, key_length, value_dim).

    ``head_dim``, ``value_dim``, ``dtype`` and whether it is causal are compiled into a kernel; batch,
    heads and lengths are run-time arguments of every kernel and only say here which length class
    (see :attr:`length_class`) is meant and what tuning should measure.

    ``causal`` is None, "top_left" (query i sees keys 0..i, as torch's ``is_causal``) or "bottom_right"
    (query i sees keys 0..i + key_length - query_length, as in decoding against a cache); True means
    "top_left". ``value_dim`` defaults to ``head_dim`` and ``kv_heads`` to ``query_heads``.

    Raises InvalidValueError, InvalidTypeError or UnsupportedError for a workload no kernel serves.
    """

    head_dim: int
    value_dim: int | None = None
    dtype: str = "float32"
    causal: str | bool | None = None
    batch: int = 1
    query_heads: int = 8
    kv_heads: int | None = None
    query_length: int = 512
    key_length: int = 512

    def __post_init__(self) -> None:
        if self.value_dim is None:
            object.__setattr__(self, "value_dim", self.head_dim)
        if self.kv_heads is None:
            object.__setattr__(self, "kv_heads", self.query_heads)
        if isinstance(self.causal, bool):
            object.__setattr__(self, "causal", "top_left" if self.causal else None)
        self._validate()

    def _validate(self) -> None:
        for name in ("head_dim", "value_dim"):
            _require_int(name, getattr(self, name), 1, MAX_HEAD_DIM)
        for name in ("batch", "query_heads", "kv_heads", "query_length", "key_length"):
            _require_int(name, getattr(self, name), 1, 2**31 - 1)
        if self.dtype not in DTYPES:
            raise UnsupportedError(
                f"dtype: expected one of {', '.join(DTYPES)}, got {self.dtype!r}"
            )
        if self.causal is not None and self.causal not in CAUSAL_KINDS:
            raise InvalidValueError(
                f"causal: expected None, {' or '.join(map(repr, CAUSAL_KINDS))}, got {self.causal!r}"
            )
        assert self.kv_heads is not None
        if self.query_heads % self.kv_heads:
            raise InvalidValueError(
                f"grouped-query attention needs query_heads to be a multiple of kv_heads, "
                f"got {self.query_heads} and {self.kv_heads}"
            )

    @property
    def group(self) -> int:
        """Query heads that share one key-value head."""
        assert self.kv_heads is not None
        return self.query_heads // self.kv_heads

    @property
    def length_class(self) -> str:
        """ "decode-r1", "decode-r2", "decode-r4" or "decode-r8" when at most 8 query rows share a
        key-value head, else "short" (<= 256 keys), "medium" (<= 1024) or "long"."""
        rows = self.group * self.query_length
        for limit in DECODE_ROWS:
            if rows <= limit:
                return f"decode-r{limit}"
        if self.key_length <= SHORT_KEYS:
            return "short"
        return "medium" if self.key_length <= MEDIUM_KEYS else "long"

    @property
    def flops(self) -> int:
        """Multiply-adds counted as two operations; about half of the full count when causal."""
        assert self.value_dim is not None
        pairs = self.query_length * self.key_length
        if self.causal:
            offset = 0 if self.causal == "top_left" else self.key_length - self.query_length
            pairs = sum(
                max(0, min(self.key_length, i + 1 + offset)) for i in range(self.query_length)
            )
        return 2 * self.batch * self.query_heads * pairs * (self.head_dim + self.value_dim)

    @property
    def kv_bytes(self) -> int:
        """Bytes of the key and value tensors."""
        assert self.value_dim is not None
        assert self.kv_heads is not None
        return 4 * self.batch * self.kv_heads * self.key_length * (self.head_dim + self.value_dim)

    def to_dict(self) -> dict[str, object]:
        """The fields by name, as a tuning record stores them."""
        return asdict(self)

    def with_lengths(self, query_length: int, key_length: int) -> AttentionWorkload:
        """The same problem at other lengths."""
        return replace(self, query_length=query_length, key_length=key_length)

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> AttentionWorkload:
        """From fields by name; an unknown name or a missing head_dim is an error."""
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise InvalidValueError(
                f"unknown workload field {', '.join(unknown)}; known: {', '.join(sorted(known))}"
            )
        if "head_dim" not in values:
            raise InvalidValueError("a workload needs head_dim, for example head_dim=64")
        return cls(**values)  # type: ignore[arg-type]

    @classmethod
    def from_text(cls, text: str) -> AttentionWorkload:
        """From "head_dim=64,dtype=float32,causal=top_left,key_length=1024" (the command line's form)."""
        values: dict[str, object] = {}
        for part in filter(None, (p.strip() for p in text.split(","))):
            name, equals, value = (p.strip() for p in part.partition("="))
            if not equals or not value:
                raise InvalidValueError(f"workload: expected name=value, got {part!r} in {text!r}")
            if name in values:
                raise InvalidValueError(f"workload: {name} is given twice in {text!r}")
            values[name] = _parse(name, value)
        return cls.from_dict(values)


def _parse(name: str, text: str) -> object:
    if name == "dtype":
        return text
    if name == "causal":
        plain = {"none": None, "false": None, "true": "top_left"}
        return plain.get(text.lower(), text)
    try:
        return int(text)
    except ValueError:
        raise InvalidValueError(f"{name}: expected a whole number, got {text!r}") from None


def _require_int(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidTypeError(f"{name}: expected an int, got {type(value).__name__}")
    if not low <= value <= high:
        raise InvalidValueError(f"{name}: expected {low} to {high}, got {value}")


def default_scale(head_dim: int) -> float:
    """1 / sqrt(head_dim), as in Vaswani et al., "Attention Is All You Need" (2017)."""
    return 1.0 / math.sqrt(head_dim)
