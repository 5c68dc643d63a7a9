"""The least that a server in Python can be: for each frame one reply, of the size that a PUSH gets.

    python benchmarks/echo_server.py PORT

What a PUSH costs beyond this is the queue; the rest is Python, its selector and the kernel.
"""

from __future__ import annotations

import selectors
import socket
import struct
import sys

import msgpack


def main(port: int) -> None:
    selector = selectors.DefaultSelector()
    listener = socket.create_server(("127.0.0.1", port))
    selector.register(listener, selectors.EVENT_READ)
    body: bytes = msgpack.packb({"ok": True, "id": "0197c2a4-0000-7000-8000-000000000000", "reqId": "1000"})
    reply = struct.pack(">I", len(body)) + body
    room = bytearray(262_144)  # fresh memory for each read would cost page faults
    while True:
        for key, _ in selector.select():
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            if sock is listener:
                peer, _ = listener.accept()
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                selector.register(peer, selectors.EVENT_READ)
            elif n := sock.recv_into(room):
                # One request at a time: what has come is one whole frame.
                if n == 4 + int.from_bytes(room[:4], "big"):
                    sock.send(reply)
            else:
                selector.unregister(sock)
                sock.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
