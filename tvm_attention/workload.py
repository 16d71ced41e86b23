"""What a kernel is made for: the attention problem, its validation and its length class."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace

from tvm_attention.errors import InvalidTypeError, InvalidValueError, UnsupportedError
from tvm_attention.workload_text import parsed_fields

MAX_HEAD_DIM = 512
DTYPES = ("float32", "float16", "bfloat16")
KV_DTYPES = ("int8",)
MASK_DTYPES = ("bool", *DTYPES)
CAUSAL_KINDS = ("top_left", "bottom_right")
OUTPUTS = ("attention", "attention_and_lse", "weights")
UNBOUNDED = -1  # a side of a window without a limit

# Rows that share one key-value head (group size x query length) up to which keys, not queries, are the
# long axis: the score of a key is then a dot product that streams the cache once.
DECODE_ROWS = (1, 2, 4, 8)
SHORT_KEYS = 256
MEDIUM_KEYS = 1024
FEW_QUERIES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWorkload:
    """softmax(scale * Q K^T) V over query (batch, query_heads, query_length, head_dim),
    key (batch, kv_heads, key_length, head_dim) and value (batch, kv_heads, key_length, value_dim).

    Batch, heads and lengths are run-time arguments of every kernel and only say here which length class
    (see :attr:`length_class`) is meant and what tuning should measure; so are the widths of a window.
    Everything else is compiled into a kernel.

    ``causal`` is None, "top_left" (query i sees keys 0..i, as torch's ``is_causal``) or "bottom_right"
    (query i sees keys 0..i + key_length - query_length, as in decoding against a cache); True means
    "top_left". ``value_dim`` defaults to ``head_dim`` and ``kv_heads`` to ``query_heads``.

    ``window`` (left, right): query i sees so many keys on either side of its own, -1 for all.
    ``mask`` is the dtype of a mask, None without one; ``mask_per_key`` says that all queries share it,
    ``mask_dense`` that neighbouring keys of a query's own row are adjacent in memory.
    ``softcap``, ``alibi``, ``sinks``: whether scores are capped, biased by distance, and a logit a head
    joins the denominator. ``ragged``: whether every batch element has lengths of its own;
    ``paged``: whether keys and values are found through a table of pages. ``kv_dtype`` is that of keys and
    values where it differs from ``dtype``: "int8", with scales. ``output`` is "attention",
    "attention_and_lse" (with the log-sum-exp of every row) or "weights" (the softmax rows alone).

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
    window: tuple[int, int] | None = None
    mask: str | None = None
    mask_per_key: bool = False
    mask_dense: bool = False
    softcap: bool = False
    alibi: bool = False
    sinks: bool = False
    ragged: bool = False
    paged: bool = False
    kv_dtype: str | None = None
    output: str = "attention"

    def __post_init__(self) -> None:
        if self.value_dim is None:
            object.__setattr__(self, "value_dim", self.head_dim)
        if self.kv_heads is None:
            object.__setattr__(self, "kv_heads", self.query_heads)
        if isinstance(self.causal, bool):
            object.__setattr__(self, "causal", "top_left" if self.causal else None)
        if isinstance(self.window, list):  # as JSON has it
            object.__setattr__(self, "window", tuple(self.window))
        self._validate()

    def _validate(self) -> None:
        for name in ("head_dim", "value_dim"):
            _require_int(name, getattr(self, name), 1, MAX_HEAD_DIM)
        for name in ("batch", "query_heads", "kv_heads", "query_length", "key_length"):
            _require_int(name, getattr(self, name), 1, 2**31 - 1)
        if self.dtype not in DTYPES:
            raise UnsupportedError(
                f"dtype: expected one of {', '.join(DTYPES)}, got {reprlib.repr(self.dtype)}"
            )
        for name, known in (
            ("causal", (None, *CAUSAL_KINDS)),
            ("mask", (None, *MASK_DTYPES)),
            ("kv_dtype", (None, *KV_DTYPES)),
            ("output", OUTPUTS),
        ):
            if getattr(self, name) not in known:
                expected, got = " or ".join(map(repr, known)), reprlib.repr(getattr(self, name))
                raise InvalidValueError(f"{name}: expected {expected}, got {got}")
        for name in ("mask_per_key", "mask_dense", "softcap", "alibi", "sinks", "ragged", "paged"):
            if not isinstance(getattr(self, name), bool):
                got = reprlib.repr(getattr(self, name))
                raise InvalidTypeError(f"{name}: expected a bool, got {got}")
        for name in ("mask_per_key", "mask_dense"):
            if getattr(self, name) and self.mask is None:
                raise InvalidValueError(f"{name}: expected False without a mask, got True")
        _check_window(self.window)
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
    def few_queries(self) -> bool:
        """Whether keys and values serve so few queries that copying them first is dear."""
        return self.length_class in ("medium", "long") and self.query_length < FEW_QUERIES

    @property
    def masks(self) -> bool:
        """Whether a query may have keys that it does not see."""
        padded = self.ragged and self.output == "weights"  # whose rows are as long as the longest
        return bool(self.causal or self.window or self.mask or padded)

    @property
    def keeps_maximum(self) -> bool:
        """Whether the end of a row needs its maximum beside its sum."""
        return self.sinks or self.output == "attention_and_lse"

    @property
    def kernel_features(self) -> tuple[object, ...]:
        """What is compiled into a kernel beyond head dimensions and dtype, in a fixed order."""
        return (
            bool(self.causal), self.window is not None, self.mask, self.mask_per_key, self.mask_dense,
            self.softcap, self.alibi, self.sinks, self.ragged, self.paged, self.kv_dtype, self.output,
        )  # fmt: skip

    def to_dict(self) -> dict[str, object]:
        """The fields by name, as a tuning record stores them: extensions only where they are used."""
        values = asdict(self)
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
            if name not in _EXTENSIONS or value != _EXTENSIONS[name]
        }

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
                f"unknown workload field {', '.join(map(_shown, unknown))}; known: {', '.join(sorted(known))}"
            )
        if "head_dim" not in values:
            raise InvalidValueError("a workload needs head_dim, for example head_dim=64")
        return cls(**values)  # type: ignore[arg-type]

    @classmethod
    def from_text(cls, text: str) -> AttentionWorkload:
        """From "head_dim=64,dtype=float32,causal=top_left,key_length=1024" (the command line's form)."""
        return cls.from_dict(parsed_fields(text))


# Fields that were not in the first schema of records, with the values they had then.
_NEW_FIELDS = (
    "window", "mask", "mask_per_key", "mask_dense", "softcap", "alibi", "sinks", "ragged", "paged",
    "kv_dtype", "output",
)  # fmt: skip
_EXTENSIONS = {f.name: f.default for f in fields(AttentionWorkload) if f.name in _NEW_FIELDS}


def _shown(name: object) -> str:
    """A name as it is, one that is none so that a terminal can show it."""
    return name if isinstance(name, str) and name.isidentifier() else reprlib.repr(name)


def _require_int(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidTypeError(f"{name}: expected an int, got {type(value).__name__}")
    if not low <= value <= high:
        raise InvalidValueError(f"{name}: expected {low} to {high}, got {value}")


def _check_window(window: object) -> None:
    if window is None:
        return
    if not isinstance(window, tuple) or len(window) != 2:
        raise InvalidTypeError(
            f"window: expected (left, right) or None, got {reprlib.repr(window)}"
        )
    for side in window:
        _require_int("window", side, UNBOUNDED, 2**30)


def default_scale(head_dim: int) -> float:
    """1 / sqrt(head_dim), as in Vaswani et al., "Attention Is All You Need" (2017)."""
    return 1.0 / math.sqrt(head_dim)
