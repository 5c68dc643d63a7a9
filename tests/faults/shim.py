"""The fault shim from the outside: build it, count calls, arm and disarm faults, read its record."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import shlex
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

KINDS = ("write", "sync", "truncate", "open", "read", "unlink")
GROWING, SHORT = 1, 2
FOREVER = 2**62
#: Instead of the number of a process.
EVERYBODY = -1

_RULES_AT = 16
_RULE = struct.Struct("<qqii")
_SEEN_AT = _RULES_AT + _RULE.size * len(KINDS)
_FAILED_AT = _SEEN_AT + 8 * len(KINDS)
_PREFIX_AT = _FAILED_AT + 8 * len(KINDS)
_BYTES = _PREFIX_AT + 1024
_ENTRY = struct.Struct("<qqIBBBB")


def build() -> Path:
    """Compile the shim, once for each state of its source."""
    source = Path(__file__).with_name("shim.c")
    name = f"qcore-faults-{os.getuid()}-{hashlib.sha256(source.read_bytes()).hexdigest()[:16]}.so"
    target = Path(tempfile.gettempdir()) / name
    if not target.exists():
        fresh = target.with_name(f"{name}.{os.getpid()}")
        compiler = shlex.split(os.environ.get("CC") or "gcc")
        flags = ["-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-U_FORTIFY_SOURCE"]
        subprocess.run([*compiler, *flags, "-o", str(fresh), str(source), "-ldl", "-lpthread"], check=True)
        fresh.replace(target)
    return target


@dataclass(frozen=True, slots=True)
class Change:
    """One recorded call: what it did to which file, and when it began."""

    kind: str
    name: str  # "/" = the directory; else the suffix of the data file's path
    start_ns: int
    offset: int
    data: bytes
    failed: bool


class Faults:
    """The control block of one shim, and the environment that puts it under a program."""

    def __init__(self, folder: Path, data_file: Path) -> None:
        self._file = folder / "faults"
        self._record = folder / "faults.rec"
        if not self._file.exists():
            self._file.write_bytes(bytes(_BYTES))
        with open(self._file, "r+b") as file:
            self._block = mmap.mmap(file.fileno(), _BYTES)
        self.watch(data_file)

    @property
    def env(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(build()), "FAULTS": str(self._file)}

    def watch(self, data_file: Path) -> None:
        """Look at this file and those beside it."""
        path = os.fsencode(os.path.realpath(data_file))
        self._block[_PREFIX_AT : _PREFIX_AT + 1024] = path.ljust(1024, b"\0")

    def attach(self, pid: int, *, record: bool = False, keep: bool = False) -> None:
        """Apply to this process from now on (0: to none; EVERYBODY: to all that have the environment).

        Unless ``keep``, begin anew without faults.
        """
        if keep:
            struct.pack_into("<q", self._block, 0, pid)
            return
        self._block[0:_PREFIX_AT] = bytes(_PREFIX_AT)
        if self._record.exists():
            os.truncate(self._record, 0)
        struct.pack_into("<qq", self._block, 0, pid, record)

    def arm(
        self, kind: str, first: int = 1, last: int = FOREVER, *, error: int = errno.EIO, how: int = 0
    ) -> None:
        """Let calls of a kind fail from the ``first`` to the ``last``, counted since :meth:`attach`."""
        _RULE.pack_into(self._block, _RULES_AT + _RULE.size * KINDS.index(kind), first, last, error, how)

    def disarm(self) -> None:
        """Let every call succeed again."""
        for i in range(len(KINDS)):
            struct.pack_into("<qq", self._block, _RULES_AT + _RULE.size * i, 0, 0)

    def fill_disk(self, first: int = 1) -> None:
        """No file grows any more; the first write that would is cut in half."""
        for kind in ("write", "truncate", "open"):
            self.arm(kind, first if kind == "write" else 1, error=errno.ENOSPC, how=GROWING | SHORT)

    def make_read_only(self) -> None:
        """As after the system has remounted the file system because of an error."""
        for kind in ("write", "truncate", "open", "unlink"):
            self.arm(kind, error=errno.EROFS)

    @property
    def seen(self) -> dict[str, int]:
        """Calls of each kind since :meth:`attach`."""
        return dict(zip(KINDS, struct.unpack_from(f"<{len(KINDS)}q", self._block, _SEEN_AT), strict=True))

    @property
    def failed(self) -> dict[str, int]:
        return dict(zip(KINDS, struct.unpack_from(f"<{len(KINDS)}q", self._block, _FAILED_AT), strict=True))

    def changes(self) -> Iterator[Change]:
        """What was recorded, in order."""
        raw = self._record.read_bytes()
        at = 0
        while at < len(raw):
            offset, start_ns, n, kind, name_n, _, failed = _ENTRY.unpack_from(raw, at)
            at += _ENTRY.size
            name = os.fsdecode(raw[at : at + name_n])
            at += name_n
            yield Change(
                KINDS[kind], name.removeprefix("="), start_ns, offset, raw[at : at + n], bool(failed)
            )
            at += n
