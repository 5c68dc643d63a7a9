"""Adds at level ``synced``: how many producers that wait at once share an fsync.

    python -m benchmarks.group_fsync --folder /path/on/the/disk

One server process, one file; a producer sends an add and waits for its reply. Prints a
JSON line for each number of producers: adds a second, fsyncs, and the rate as a multiple
of one producer's.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgpack


def framed(**fields: object) -> bytes:
    body: bytes = msgpack.packb(fields)
    return len(body).to_bytes(4, "big") + body


ADD = framed(cmd="PUSH", queue="q", name="n", data={"x": "y" * 100}, durable=True)


def run(port: int, producers: int, seconds: float) -> float:
    """Adds a second of so many producers, from one thread."""
    selector = selectors.DefaultSelector()
    for _ in range(producers):
        sock = socket.create_connection(("127.0.0.1", port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(sock, selectors.EVENT_READ)
        sock.sendall(ADD)
    done, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        for key, _ in selector.select():
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            reply = sock.recv(4096)
            assert msgpack.unpackb(reply[4:])["ok"], reply
            done += 1
            sock.sendall(ADD)
    rate = done / (time.perf_counter() - begun)
    for key in list(selector.get_map().values()):
        key.fileobj.close()  # type: ignore[union-attr]
    return rate


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="on the disk that is to be measured")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--producers", type=int, nargs="+", default=[1, 8, 64])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        command = [sys.executable, "-m", "qcore.server", "--port", "0", "--data", f"{folder}/jobs.db"]
        server = subprocess.Popen(
            [*command, "--changes", "synced"], stdout=subprocess.PIPE, text=True, env=os.environ
        )
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline().rsplit(":", 1)[1])
            run(port, 1, 0.5)
            one = 0.0
            for producers in options.producers:
                rate = run(port, producers, options.seconds)
                one = one or rate / producers
                print(
                    json.dumps(
                        {"producers": producers, "adds_per_s": round(rate), "times": round(rate / one, 1)}
                    )
                )
        finally:
            server.terminate()
            server.wait(30)


if __name__ == "__main__":
    main()
