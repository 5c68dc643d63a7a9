"""A walk through SQLite's write-ahead log: as far as its own recovery reads, and on to the end of the file.

SQLite stops at the first frame whose checksum does not follow from the one before, and takes
whatever comes then for what an earlier use of the log left behind. Frames behind that place which
carry the salt of this use were written later than the one that is not sound.

Format: https://www.sqlite.org/fileformat2.html#the_write_ahead_log
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_SetFromErrno
from libc.errno cimport EINTR, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memset
from posix.types cimport off_t
from posix.unistd cimport pread

cdef enum:
    HEADER = 32
    FRAME_HEADER = 24
    SALT_AT = 16                # in the header
    FRAME_SALT_AT = 8
    USUAL_PAGE = 4096
    LARGEST_PAGE = 65536
    AT_ONCE = 256 * 1024        # bytes that are read in one call, or one frame

cdef struct Sums:
    uint32_t a, b

cdef struct Found:
    bint sound
    uint32_t page_bytes
    uint8_t salt[8]
    int64_t frames, kept, after, left, commits_left


cdef inline uint32_t big(const uint8_t *p) noexcept nogil:
    return <uint32_t>p[0] << 24 | <uint32_t>p[1] << 16 | <uint32_t>p[2] << 8 | p[3]


cdef inline uint32_t little(const uint8_t *p) noexcept nogil:
    return <uint32_t>p[3] << 24 | <uint32_t>p[2] << 16 | <uint32_t>p[1] << 8 | p[0]


cdef void add(Sums *sums, const uint8_t *p, Py_ssize_t n, bint big_words) noexcept nogil:
    cdef Py_ssize_t i
    cdef uint32_t a = sums.a, b = sums.b
    if big_words:
        for i in range(0, n, 8):
            a += big(p + i) + b
            b += big(p + i + 4) + a
    else:
        for i in range(0, n, 8):
            a += little(p + i) + b
            b += little(p + i + 4) + a
    sums.a, sums.b = a, b


cdef Py_ssize_t read_all(int fd, uint8_t *p, Py_ssize_t n, int64_t at) noexcept nogil:
    """How many of ``n`` bytes there are at ``at``; -1 with errno set."""
    cdef Py_ssize_t done = 0, got
    while done < n:
        got = pread(fd, p + done, <size_t>(n - done), <off_t>(at + done))
        if got < 0:
            if errno == EINTR:
                continue
            return -1
        if got == 0:
            break
        done += got
    return done


cdef bint read_header(const uint8_t *p, Found *found, Sums *sums) noexcept nogil:
    cdef uint32_t magic = big(p)
    found.page_bytes = big(p + 8)
    memcpy(found.salt, p + SALT_AT, 8)
    sums.a = sums.b = 0
    add(sums, p, 24, magic & 1)
    return (magic & ~(<uint32_t>1) == 0x377F0682
            and 512 <= found.page_bytes <= LARGEST_PAGE and found.page_bytes & (found.page_bytes - 1) == 0
            and sums.a == big(p + 24) and sums.b == big(p + 28))


cdef int c_walk(int fd, int64_t last, uint8_t *room, Found *found) noexcept nogil:
    cdef Sums sums
    cdef const uint8_t *p
    cdef Py_ssize_t frame_bytes, got, n, i
    cdef int64_t number = 0, at = HEADER
    cdef bint big_words, ends
    got = read_all(fd, room, HEADER + FRAME_HEADER, 0)
    if got < HEADER:
        return -1 if got < 0 else 0
    found.sound = read_header(room, found, &sums)
    big_words = room[3] & 1
    if not found.sound:
        # What wrote the first frame is the best guess at what the others belong to.
        found.page_bytes = USUAL_PAGE
        if got == HEADER + FRAME_HEADER:
            memcpy(found.salt, room + HEADER + FRAME_SALT_AT, 8)
    frame_bytes = FRAME_HEADER + found.page_bytes
    n = max(1, AT_ONCE // frame_bytes)
    ends = not found.sound
    while True:
        got = read_all(fd, room, n * frame_bytes, at)
        if got < 0:
            return -1
        at += got
        for i in range(got // frame_bytes):
            p = room + i * frame_bytes
            number += 1
            if memcmp(p + FRAME_SALT_AT, found.salt, 8) != 0 or big(p) == 0:
                ends = True
                continue
            if not ends:
                add(&sums, p, 8, big_words)
                add(&sums, p + FRAME_HEADER, found.page_bytes, big_words)
                if sums.a == big(p + 16) and sums.b == big(p + 20):
                    found.frames = number
                    found.left += 1
                    if big(p + 4):
                        found.kept = number
                        found.left = 0
                    continue
                ends = True
            if last and number > last:
                continue
            found.left += 1
            if big(p + 4):
                found.commits_left += 1
                if number > found.frames + 1:
                    found.after = number
        if got < n * frame_bytes:
            return 0


def walk(int fd, int64_t last=0):
    """Read a log: (sound, page_bytes, salt, frames, kept, after, left, commits_left).

    * ``sound``: its header is; if not, ``salt`` is that of the first frame
    * ``frames``: how many follow from the header, one after the other
    * ``kept``: the last of them that ends a commit, so what SQLite reads
    * ``after``: the last commit behind the first frame that is not sound; 0 = none
    * ``left``, ``commits_left``: frames and commits of this use of the log behind ``kept``

    With ``last``, nothing behind that frame counts as left. A few hundred KiB of memory, and
    about a millisecond for each MiB, without the interpreter lock. Raises OSError.
    """
    cdef Found found
    cdef int rc
    cdef uint8_t *room = <uint8_t *>malloc(max(AT_ONCE, FRAME_HEADER + LARGEST_PAGE))
    if room == NULL:
        raise MemoryError
    memset(&found, 0, sizeof(found))
    found.page_bytes = USUAL_PAGE
    try:
        with nogil:
            rc = c_walk(fd, last, room, &found)
        if rc < 0:
            PyErr_SetFromErrno(OSError)
    finally:
        free(room)
    return (found.sound, found.page_bytes, PyBytes_FromStringAndSize(<char *>found.salt, 8), found.frames,
            found.kept, found.after, found.left, found.commits_left)
