"""Who owns a data file: one process, through locks that the kernel drops with it.

One lock is on ``<file>.lock``, which names the owner, one on a byte of the file itself, which
goes along when it is renamed. Both are taken before SQLite opens the file, so a dead owner
never blocks.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import struct
import sys
import threading
import time

from qcore.errors import EngineBusyError
from qcore.store.base import StoreFault
from qcore.store.faults import system_fault

#: So long is waited for the end of an owner that was killed.
DYING_OWNER_S = 10.0
#: So long is waited for one that the system does not name: it may have lost half of its locks already.
UNKNOWN_OWNER_S = 1.0

# Bytes of the data file that are locked, far behind those that SQLite locks. Those of SQLite,
# and the second of ours, go when any descriptor of the file is closed in the process; the
# first one, a lock of an open file description, does not. The second is for its owner's pid.
_OWNED_BYTE = 0x5163_0000
_NAMING_BYTE = _OWNED_BYTE + 1
_SHARED_BYTES = (0x4000_0002, 510)  # SQLite holds these as long as a file is open
_FLOCK = struct.Struct("hhqqi")  # type, whence, start, length, pid
#: Whether a data file is locked itself, or only its name.
LOCKS_FILES = sys.platform == "linux" and struct.calcsize("P") == 8

_PF_EXITING = 4  # of Linux, in /proc/PID/stat

# Files that this process has open or is about to, by name, and those that it owns. A second look
# at an owned file must not even open it: closing any descriptor of it would drop the locks that
# SQLite holds.
_opened: set[str] = set()
_owned: dict[tuple[int, int], str] = {}
_owned_guard = threading.Lock()


def key_of(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def claim(path: str) -> None:
    """Note that this process is about to open the file of that name.

    :raises EngineBusyError: it has it open already
    """
    _refuse_owned(path)
    with _owned_guard:
        if path in _opened:
            raise _open_already(path)
        _opened.add(path)


def own(path: str, key: tuple[int, int]) -> None:
    """Note that a claimed file is open, under whatever name it has."""
    with _owned_guard:
        _owned[key] = path


def disclaim(path: str, key: tuple[int, int] | None) -> None:
    """The file is closed, or was never opened: ``key`` None."""
    with _owned_guard:
        _opened.discard(path)
        if key is not None:
            _owned.pop(key, None)


def _after_fork_in_child() -> None:
    global _owned_guard
    _owned_guard = threading.Lock()
    _owned.clear()
    _opened.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _open_already(path: str) -> EngineBusyError:
    return EngineBusyError(f"{path} is already open in this process (pid {os.getpid()})")


def is_owned_here(path: str) -> bool:
    """Whether a store of this process has the file: then nothing else here may open and close it."""
    key = key_of(path)
    with _owned_guard:
        return key in _owned


def _refuse_owned(path: str) -> None:
    if is_owned_here(path):
        raise _open_already(path)


def hold_file(path: str, *, write: bool = False) -> int:
    """Lock the data file itself and return its descriptor, to be closed to let it go.

    With ``write`` it is made if it is not there; else -1 is returned then. It is to be held
    beside the lock of its name, which somebody may have removed, or the file renamed.

    :raises EngineBusyError: another process holds it
    """
    began = time.monotonic()
    flags = os.O_CLOEXEC | (os.O_RDWR | os.O_CREAT if write else os.O_RDONLY)
    kind = fcntl.F_WRLCK if write else fcntl.F_RDLCK
    looked_again = False
    while True:
        _refuse_owned(path)
        try:
            fd = os.open(path, flags, 0o644)
        except FileNotFoundError:
            if not write:
                return -1
            raise StoreFault(f"{path} cannot be made", "missing") from None
        except OSError as error:
            raise system_fault(error, f"{path} cannot be opened") from None
        owner = ""
        try:
            if lock_file(fd, kind):
                if key_of(path) == (os.fstat(fd).st_dev, os.fstat(fd).st_ino):
                    return fd
            else:
                owner = _holder_of(fd)
                waited = time.monotonic() - began
                wait = (waited < UNKNOWN_OWNER_S and not owner) or (
                    waited < DYING_OWNER_S and is_dying(owner)
                )
                if not wait and looked_again:  # it may have ended between the two looks
                    raise EngineBusyError(f"{path} is in use by process {owner or 'unknown'}")
                looked_again = not wait
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        time.sleep(0.005)


def lock_file(fd: int, kind: int) -> bool:
    """Whether the lock was free; a system that has no such locks has only the one of the name."""
    if not LOCKS_FILES:
        return True
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, _OWNED_BYTE, 1, 0))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        if error.errno not in (errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise StoreFault(f"the data file cannot be locked: {error.strerror}", "io") from None
    with contextlib.suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_SETLK, _FLOCK.pack(kind, os.SEEK_SET, _NAMING_BYTE, 1, 0))
    return True


def _holder_of(fd: int) -> str:
    """The pid of who has the file open, as far as the system tells."""
    for start, length in ((_NAMING_BYTE, 1), _SHARED_BYTES):
        with contextlib.suppress(OSError):
            asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
            kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))
            if kind != fcntl.F_UNLCK and pid > 0:
                return str(pid)
    return ""


def drop_lock(path: str, fd: int) -> None:
    """Remove ``<path>.lock``, if it is ours, and let it go."""
    with contextlib.suppress(OSError):
        if os.path.samestat(os.stat(path + ".lock"), os.fstat(fd)):
            os.unlink(path + ".lock")
    os.close(fd)


def take_lock(path: str, *, named: bool = True) -> int:
    """Lock ``<path>.lock``, write our pid into it and return its descriptor.

    Without ``named`` the pid may be missing, for want of room. After a failure no file stays.

    A killed process has its locks until the kernel has taken its memory apart, some
    200 ms for a gigabyte. It will write nothing any more, so its end is waited for.

    :raises EngineBusyError: another process holds it
    """
    name = path + ".lock"
    give_up_at = time.monotonic() + DYING_OWNER_S
    looked_again = False
    while True:
        try:
            fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise system_fault(error, f"{path} needs {name} beside it") from None
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    raise StoreFault(f"{name} cannot be locked: {error.strerror}", "io") from None
                owner = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
                dying = time.monotonic() < give_up_at and is_dying(owner)
                if dying or not looked_again:  # it may have ended between the two looks
                    looked_again = not dying
                    os.close(fd)
                    fd = -1
                    time.sleep(0.005)
                    continue
                raise EngineBusyError(f"{path} is in use by process {owner}") from None
            # The last owner may have removed the name between our open and our lock.
            try:
                same = os.path.samestat(os.stat(name), os.fstat(fd))
            except FileNotFoundError:
                same = False
            if same:
                try:
                    os.ftruncate(fd, 0)
                    os.pwrite(fd, b"%d\n" % os.getpid(), 0)
                except OSError as error:
                    if named:
                        with contextlib.suppress(OSError):
                            os.unlink(name)
                        raise system_fault(error, f"{path} needs {name} beside it") from None
                return fd
        except BaseException:
            if fd >= 0:
                os.close(fd)
            raise
        os.close(fd)


def is_dying(pid: str) -> bool:
    """Whether a process was killed and has not ended yet, as far as this system tells."""
    try:
        with open(f"/proc/{int(pid)}/stat", "rb") as file:
            flags = int(file.read().rpartition(b")")[2].split()[6])
        with open(f"/proc/{int(pid)}/status", "rb") as file:
            pending = next(line for line in file if line.startswith(b"SigPnd:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return False
    return bool(flags & _PF_EXITING or int(pending.split()[1], 16) >> (signal.SIGKILL - 1) & 1)
