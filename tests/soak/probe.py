"""Measure what a client feels beside the load: how long a Ping and a durable add take.

    python -m tests.soak.probe PORT FILE QUEUE FIRST

Writes a record for each sample until SIGTERM. The jobs it adds are numbered from FIRST.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np

from tests.soak.line import Line

SAMPLE = np.dtype([("at_ns", "<i8"), ("took_ns", "<i8"), ("kind", "<i8")])
PING, DURABLE = range(2)
PAUSE_S = 0.01


def main(argv: list[str]) -> int:
    port, path, queue, first = argv
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    line, n = Line(int(port)), int(first)
    while not ended:
        for kind in (PING, PING, DURABLE):
            began = time.monotonic_ns()
            if kind == PING:
                line.call("Ping")
            else:
                data = {"n": n, "ms": 0}
                line.call("PUSH", queue=queue, name="probe", data=data, durable=True, removeOnComplete=True)
                n += 1
            took = time.monotonic_ns() - began
            os.write(fd, np.array([(began, took, kind)], dtype=SAMPLE).tobytes())
            time.sleep(PAUSE_S)
    line.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
