"""Opening the addresses of a server: a TCP port, and a socket in the file system."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass

from qcore.errors import ConfigError

BACKLOG = 1024
#: How long to wait for another server that is starting in the same directory.
START_PATIENCE_S = 5.0
PROBE_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening socket; of a socket in the file system also its path and which file it is there."""

    sock: socket.socket
    path: str | None = None
    inode: tuple[int, int] = (0, 0)

    def close(self) -> None:
        """Close it, and remove the file unless another one has its name by now."""
        if self.path is not None:
            # Before the close: until then nobody else gets the number of our file.
            with contextlib.suppress(OSError):
                if _inode(self.path) == self.inode:
                    os.unlink(self.path)
        self.sock.close()


def open_tcp(host: str, port: int) -> Listener:
    """Listen on a TCP port.

    :raises ConfigError: the address is busy or not usable
    """
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = infos[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    try:
        if os.name == "posix":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        why = "the port is in use" if error.errno == errno.EADDRINUSE else error.strerror
        raise ConfigError(f"cannot listen on {host}:{port}: {why}") from None
    sock.setblocking(False)
    return Listener(sock)


def open_unix(path: str) -> Listener:
    """Listen on a socket in the file system, which only this user can connect to.

    A socket file that a dead server left is replaced; one that somebody listens on,
    or a file of another kind, is not.

    :raises ConfigError: the path is taken or not usable
    """
    if not hasattr(socket, "AF_UNIX"):
        raise ConfigError("--socket: this system has no Unix sockets")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _alone_in(os.path.dirname(path) or "."):
            _make_room(path)
            sock.bind(path)
            # Nobody can connect between the two: it does not listen yet.
            os.chmod(path, 0o600)
            sock.listen(BACKLOG)
            inode = _inode(path)
    except OSError as error:
        sock.close()
        raise ConfigError(f"cannot listen on {path}: {error.strerror or error}") from None
    except BaseException:
        sock.close()
        raise
    sock.setblocking(False)
    return Listener(sock, os.path.abspath(path), inode)


def _inode(path: str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino


@contextlib.contextmanager
def _alone_in(directory: str) -> Iterator[None]:
    """Hold the directory: of two servers that start at once, one would remove the other's new socket."""
    import fcntl

    held = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        until = time.monotonic() + START_PATIENCE_S
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise ConfigError(f"{directory} is locked by another process") from None
                time.sleep(0.02)
        yield
    finally:
        os.close(held)


def _make_room(path: str) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"cannot listen on {path}: a file of that name is there, and it is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_TIMEOUT_S)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except FileNotFoundError:
            return
        except (TimeoutError, BlockingIOError):
            pass  # somebody listens and is busy
    raise ConfigError(f"cannot listen on {path}: another server answers there")
