"""Every error the library raises on purpose.

Each class is an :class:`AttentionError` and also the built-in error a caller would expect, so both
``except AttentionError`` and ``except ValueError`` work. A message says what was expected, what came
and what to do about it.
"""


class AttentionError(Exception):
    """Base class of all errors raised by tvm_attention."""


class InvalidValueError(AttentionError, ValueError):
    """An argument has the right type but a value, shape or length that cannot be served."""


class InvalidTypeError(AttentionError, TypeError):
    """An argument has the wrong type or dtype."""


class UnsupportedError(AttentionError, NotImplementedError):
    """The request is meaningful but this version does not compute it."""


class TuningLogError(AttentionError, ValueError):
    """A tuning log is damaged, foreign or written by a newer schema; it was refused whole."""


class KernelBuildError(AttentionError, RuntimeError):
    """A kernel could not be compiled or loaded on this machine."""


class TuningError(AttentionError, RuntimeError):
    """A tuning run could not produce a result."""


class TuningLogWarning(UserWarning):
    """A tuning log of the user's was refused whole; other records or the default schedule serve."""


class FallbackWarning(UserWarning):
    """A call of torch's attention that was to be routed here is computed by torch; the message says why."""
