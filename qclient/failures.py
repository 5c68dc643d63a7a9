"""What of an exception travels: type name, message and stack text, cut to limits.

The exception object itself never leaves the process, so nothing has to be
picklable, printable or even well behaved.
"""

from __future__ import annotations

import os
import traceback
from types import TracebackType
from typing import Final

MAX_MESSAGE_CHARS: Final = 8192
MAX_STACK_LINES: Final = 50
MAX_LINE_CHARS: Final = 500
_HERE: Final = os.path.dirname(__file__)
_MAX_CHAIN: Final = 4
_MAX_GROUP: Final = 5
_MAX_FRAMES: Final = 12


def _clean(text: str, limit: int) -> str:
    """Cut ``text`` and replace what UTF-8 cannot hold."""
    n = len(text)
    if n > limit:
        text = f"{text[:limit]}... ({n} characters)"
    return text.encode("utf-8", "replace").decode("utf-8")


def _message(exc: BaseException, limit: int) -> str:
    try:
        return _clean(str(exc), limit)
    except BaseException as inner:
        return f"(its text could not be made: {type(inner).__name__})"


def error_text(exc: BaseException) -> str:
    """``TypeName: message`` in at most about 8 KiB of characters."""
    name = _clean(type(exc).__qualname__, 200)
    message = _message(exc, MAX_MESSAGE_CHARS)
    return f"{name}: {message}" if message else name


def _frames(tb: TracebackType | None, out: list[str]) -> None:
    # The frames by which the worker called the processor tell nobody anything.
    while tb is not None and os.path.dirname(tb.tb_frame.f_code.co_filename) == _HERE:
        tb = tb.tb_next
    for frame in traceback.extract_tb(tb, limit=-_MAX_FRAMES):
        out.append(_clean(f"  {frame.filename}:{frame.lineno} in {frame.name}", MAX_LINE_CHARS))
        if frame.line:
            out.append(_clean(f"    {frame.line}", MAX_LINE_CHARS))


def stack_lines(exc: BaseException) -> list[str]:
    """At most 50 lines, the exception first, then what caused it."""
    out: list[str] = []
    seen: set[int] = set()
    here: BaseException | None = exc
    for _ in range(_MAX_CHAIN):
        if here is None or id(here) in seen or len(out) >= MAX_STACK_LINES:
            break
        if seen:
            out.append("caused by:")
        seen.add(id(here))
        out.append(_clean(f"{type(here).__qualname__}: {_message(here, MAX_LINE_CHARS)}", MAX_LINE_CHARS))
        try:
            _frames(here.__traceback__, out)
        except Exception as inner:  # source lines that cannot be read, a hostile loader
            out.append(f"  (stack not readable: {type(inner).__name__})")
        if isinstance(here, BaseExceptionGroup):
            for member in here.exceptions[:_MAX_GROUP]:
                out.append(
                    _clean(f"  | {type(member).__qualname__}: {_message(member, 200)}", MAX_LINE_CHARS)
                )
            if len(here.exceptions) > _MAX_GROUP:
                out.append(f"  | and {len(here.exceptions) - _MAX_GROUP} more")
        here = here.__cause__ or (None if here.__suppress_context__ else here.__context__)
    return out[:MAX_STACK_LINES]
