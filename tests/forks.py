"""Work in a forked child, with or without the rights of its parent."""

from __future__ import annotations

import os
from collections.abc import Callable

NOBODY = 65534


def answer_of(work: Callable[[], str], *, as_nobody: bool = False) -> str:
    """What ``work`` returns in a forked child, or the error that it ends with."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if as_nobody:
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            try:
                answer = work()
            except BaseException as error:
                answer = repr(error)
            os.write(writing, answer.encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer
