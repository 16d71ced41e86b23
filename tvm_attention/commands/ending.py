"""How a command ends: its exit status, and what it says on stderr: one line for each thing wrong."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from tvm_attention.errors import AttentionError, TuningLogWarning

OK, FAILED, BAD_ARGUMENTS, INTERRUPTED, CLOSED_PIPE = 0, 1, 2, 130, 141

EXIT_STATUSES = """exit status:
  0    done; every check held
  1    a check failed, or a tuning record does not hold
  2    bad arguments, or an error that stopped the command (one line on stderr)
  130  interrupted (Ctrl-C)
  141  whoever read the output closed it before its end"""


def show_anything() -> None:
    """Has characters that the output's encoding lacks, in a path perhaps, written as escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def ended(perform: Callable[[], int], program: str = "tvm-attention") -> int:
    """Performs a command; gives its exit status, or that of what stopped it, which is said in one line."""
    try:
        try:
            return perform()
        finally:
            sys.stdout.flush()  # here, where a full disk or a closed pipe is still reported
    except AttentionError as error:
        return _stopped(program, error_text(error))
    except KeyboardInterrupt:
        return _stopped(program, "interrupted", INTERRUPTED)
    except MemoryError as error:
        return _stopped(program, f"out of memory: {error_text(error)}")
    except BrokenPipeError:
        give_up_output()
        return _stopped(program, "the output was closed before its end", CLOSED_PIPE)
    except OSError as error:
        give_up_output()
        return _stopped(program, error_text(error))


def _stopped(program: str, reason: str, status: int = BAD_ARGUMENTS) -> int:
    with suppress(OSError):  # stderr may be what cannot be written
        print(f"{program}: {reason}", file=sys.stderr)
    return status


def error_text(error: BaseException) -> str:
    """The message as one line; the middle of a very long one (a compiler's) is left out."""
    line = " ".join(str(error).split()) or type(error).__name__
    return line if len(line) <= 2000 else f"{line[:1500]} ... {line[-480:]}"


def give_up_output() -> None:
    """Lets what stdout still holds go: Python would try to write it again when it exits."""
    with suppress(OSError, ValueError), open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


@contextmanager
def warnings_in_one_line() -> Iterator[None]:
    """Shows warnings of ours without the place in the code that gave them."""
    with warnings.catch_warnings():
        show_other = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, TuningLogWarning):
                print(f"tvm-attention: warning: {message}", file=sys.stderr)
            else:
                show_other(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        yield
