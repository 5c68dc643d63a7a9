"""Counting the names of one file, in child processes.

Counting keeps a processor busy, so threads would wait for each other. Each of the
worker's threads hands its file to a child and waits for the answer instead. A
child is this file run as a program: it needs the standard library only.
"""

from __future__ import annotations

import collections
import contextlib
import io
import json
import signal
import subprocess
import sys
import threading
import tokenize

STOP_S = 10.0


def count_names(path: str) -> dict[str, int]:
    """Count every name and keyword in one Python file.

    :raises SyntaxError: the file is no Python, or not in the encoding that it names
    """
    names: collections.Counter[str] = collections.Counter()
    try:
        with tokenize.open(path) as source:
            text = source.read()
        if "\0" in text:
            raise SyntaxError("source code cannot contain null bytes")
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NAME:
                names[token.string] += 1
    except UnicodeDecodeError as exc:
        raise SyntaxError(str(exc)) from None
    except tokenize.TokenError as exc:
        raise SyntaxError(exc.args[0]) from None
    return dict(names)


class CountingChild:
    """One child process; one thread at a time.

    It ends when its standard input does, which is also when this process is killed.
    """

    def __init__(self) -> None:
        self._child = subprocess.Popen(
            # -P: what lies beside this file must not be taken for the standard library.
            [sys.executable, "-P", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            process_group=0,  # Ctrl-C is for this process, which lets its children finish
        )

    def count(self, path: str) -> dict[str, int]:
        """Count one file there. ``ChildProcessError`` when the child is gone."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        try:
            print(json.dumps(path), file=self._child.stdin, flush=True)
            line = self._child.stdout.readline()
        except (OSError, ValueError):
            line = ""
        if not line:
            raise ChildProcessError("the process that counted this file is gone")
        answer = json.loads(line)
        if "syntax" in answer:
            raise SyntaxError(answer["syntax"])
        if "error" in answer:
            raise RuntimeError(answer["error"])
        names: dict[str, int] = answer["names"]
        return names

    def close(self) -> None:
        """Let it finish the file it is at, for 10 s, and end it."""
        child = self._child
        assert child.stdin is not None
        assert child.stdout is not None
        with contextlib.suppress(OSError):  # it may be gone already
            child.stdin.close()
        try:
            child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        child.stdout.close()


class CountingPool:
    """As many children as threads that count at the same time. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[CountingChild] = []
        self._all: set[CountingChild] = set()
        self._closed = False

    def count(self, path: str) -> dict[str, int]:
        """Count one file and wait for the result."""
        child = self._take()
        try:
            return child.count(path)
        except ChildProcessError:
            self._forget(child)
            raise
        finally:
            with self._lock:
                if child in self._all:
                    self._idle.append(child)

    def _take(self) -> CountingChild:
        with self._lock:
            if self._closed:
                raise ChildProcessError("the processes that count were stopped")
            if self._idle:
                return self._idle.pop()
            child = CountingChild()
            self._all.add(child)
            return child

    def _forget(self, child: CountingChild) -> None:
        with self._lock:
            self._all.discard(child)
        child.close()

    def close(self) -> None:
        """End all children after the files they are at."""
        with self._lock:
            self._closed = True
            children = list(self._all)
            self._all.clear()
            self._idle.clear()
        for child in children:
            child.close()


def main() -> None:
    """The child: a path in each line of input, the counts in each line of output."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # nobody there to read the answer: end without a word
    for line in sys.stdin:
        answer: dict[str, object]
        try:
            answer = {"names": count_names(json.loads(line))}
        except SyntaxError as exc:
            answer = {"syntax": str(exc)}
        except Exception as exc:  # whatever it is, it is this file's failure and not the child's end
            answer = {"error": f"{type(exc).__name__}: {exc}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
