"""TLS on the port: files, handshakes, and the same bounds as without it."""

from __future__ import annotations

import os
import socket
import ssl
import struct
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qclient import ConfigError, ConnectionLost, ProtocolError, Queue, Worker
from qcore.server.options import TlsFiles, parse
from qcore.server.tls import ALERT_NO_TLS, Records, load

Start = Callable[..., Any]


@pytest.fixture
def files(authority: Any) -> tuple[str, ...]:
    """Options of a server with TLS."""
    cert, key = authority.issue("server")
    return ("--tls-cert", cert, "--tls-key", key)


class Machine:
    """The client's side of TLS without a socket, so that the test cuts the stream where it likes."""

    def __init__(self, context: ssl.SSLContext, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), 30)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")

    def encrypt(self, data: bytes) -> bytes:
        self.tls.write(data)
        return self.outgoing.read()

    def pump(self, step: Callable[[], Any], cut: int) -> Any:
        """Take a step, with everything that it needs sent in pieces of that size."""
        while True:
            try:
                done = step()
            except ssl.SSLWantReadError:
                done = None
            self.drip(self.outgoing.read(), cut)
            if done is not None:
                return done
            received = self.sock.recv(1 << 16)
            assert received, "the server closed the connection"
            self.incoming.write(received)

    def drip(self, data: bytes, cut: int) -> None:
        for at in range(0, len(data), cut):
            self.sock.sendall(data[at : at + cut])

    def shake_hands(self, cut: int = 1 << 16) -> None:
        self.pump(lambda: self.tls.do_handshake() or True, cut)

    def read(self) -> bytes:
        return bytes(self.pump(lambda: self.tls.read(1 << 16), 1))


# --- the files ------------------------------------------------------------------------------


def test_where_the_files_come_from(authority: Any) -> None:
    cert, key = authority.issue("server")
    other_cert, other_key = authority.issue("other")
    env = {"TLS_CERT_FILE": other_cert, "TLS_KEY_FILE": other_key}
    assert parse([], {}).tls is None
    assert parse([], {"TLS_CERT_FILE": "", "TLS_KEY_FILE": ""}).tls is None
    from_env = parse([], env).tls
    assert from_env is not None
    assert (from_env.cert, from_env.key) == (other_cert, other_key)
    given = parse(["--tls-cert", cert, "--tls-key", key], env).tls
    assert given is not None
    assert (given.cert, given.key) == (cert, key)


@pytest.mark.parametrize(
    ("arguments", "variables", "said"),
    [
        (["--tls-cert", "c"], {}, "--tls-cert without a key"),
        (["--tls-key", "k"], {}, "--tls-key without a certificate"),
        ([], {"TLS_CERT_FILE": "c"}, "TLS_CERT_FILE without a key"),
        ([], {"TLS_KEY_FILE": "k"}, "TLS_KEY_FILE without a certificate"),
        (["--tls-client-ca", "ca"], {}, "--tls-client-ca needs"),
        (["--tls-cert", "", "--tls-key", "k"], {}, "--tls-cert: expected a file name"),
    ],
)
def test_one_file_without_the_other(arguments: list[str], variables: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(arguments, variables)


def damaged(text: bytes) -> bytes:
    lines = text.splitlines()
    return b"\n".join([lines[0], b"AAAA", *lines[-1:]]) + b"\n"


def test_files_that_cannot_be_used(authority: Any, tmp_path: Path) -> None:
    cert, key = authority.issue("server")
    _, other_key = authority.issue("other")

    def wrong(said: str, cert: str = cert, key: str = key, client_ca: str | None = None) -> None:
        with pytest.raises(ConfigError, match=said) as caught:
            load(TlsFiles(cert, key, client_ca))
        assert "\n" not in str(caught.value)
        assert "PRIVATE" not in str(caught.value)

    def file(name: str, content: bytes) -> str:
        path = tmp_path / name
        path.write_bytes(content)
        return str(path)

    load(TlsFiles(cert, key, authority.file))
    wrong("--tls-cert: cannot read .*nothing: No such file", cert=str(tmp_path / "nothing"))
    wrong("--tls-key: cannot read .*nothing: No such file", key=str(tmp_path / "nothing"))
    wrong("--tls-key: cannot read .*: Is a directory", key=str(tmp_path))
    wrong("the key in .* does not fit the certificate", key=other_key)
    wrong("--tls-cert: .* holds no certificate in PEM form", cert=key)
    wrong("--tls-key: .* holds no private key in PEM form", key=cert)
    wrong("--tls-cert: .* holds no certificate", cert=file("empty", b""))
    wrong("cannot be used", cert=file("bad.pem", damaged(Path(cert).read_bytes())))
    wrong("cannot be used", key=file("bad.key", damaged(Path(key).read_bytes())))
    wrong("--tls-client-ca: .* holds no certificates", client_ca=key)
    locked = str(tmp_path / "locked.key")
    subprocess.run(
        ["openssl", "pkey", "-aes256", "-passout", "pass:x", "-in", key, "-out", locked], check=True
    )
    wrong("is encrypted, expected a key without a password", key=locked)


@pytest.mark.parametrize("given", ["one", "unfit", "open"])
def test_a_start_that_cannot_be_is_one_line(authority: Any, tmp_path: Path, given: str) -> None:
    cert, _ = authority.issue("server")
    _, unfit = authority.issue("other")
    arguments = ["--tls-cert", cert] + (["--tls-key", unfit] if given == "unfit" else [])
    if given == "open":  # which is warned of where it is used
        no_pem = tmp_path / "no.pem"
        no_pem.write_text("root:x:0:0\n")
        no_pem.chmod(0o644)
        arguments = ["--tls-cert", str(no_pem), "--tls-key", str(no_pem)]
    data = tmp_path / "jobs.db"
    done = subprocess.run(
        [sys.executable, "-m", "qcore.server", "--port", "0", "--data", str(data), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("qcore start: ")
    assert len(done.stderr.splitlines()) == 1
    assert not data.exists()


# --- conversations ----------------------------------------------------------------------------


def test_a_conversation(encrypted: Any) -> None:
    """Small, large and many: what goes through is the same as without TLS."""
    server, authority = encrypted
    line = server.connect(tls=authority.context())
    assert line.sock.version() in ("TLSv1.2", "TLSv1.3")
    assert line.ask(cmd="Ping")["ok"]
    large = os.urandom(5 << 20)
    assert line.ask(cmd="PUSH", queue="q", jobId="large", data=large)["ok"]
    job = line.ask(cmd="PULL", queue="q")["job"]
    assert job["data"] == large
    # One write of many requests, and many replies in few records.
    line.send(*(line.frame(cmd="Ping", reqId=str(i)) for i in range(2000)))
    assert [line.receive()["reqId"] for _ in range(2000)] == [str(i) for i in range(2000)]
    line.close()


def test_old_versions_are_refused(encrypted: Any) -> None:
    server, authority = encrypted
    context = authority.context()
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionResetError)):
        server.connect(tls=context)
    context = authority.context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    line = server.connect(tls=context)
    assert line.ask(cmd="Ping")["ok"]
    line.close()


@pytest.mark.parametrize("cut", [1, 4, 1000])
def test_any_cut_of_the_stream(encrypted: Any, cut: int) -> None:
    """Handshake, records and the frames in them, however they come."""
    server, authority = encrypted
    machine = Machine(authority.context(), server.port)
    machine.shake_hands(cut)
    ping = b"\x81\xa3cmd\xa4Ping"
    frame = struct.pack(">I", len(ping)) + ping
    # Three frames in records that end elsewhere than the frames do.
    stream = frame * 3
    records = machine.encrypt(stream[:7]) + machine.encrypt(stream[7:8]) + machine.encrypt(stream[8:])
    machine.drip(records, cut)
    got = b""
    while got.count(b"pong") < 3:
        got += machine.read()
    machine.sock.close()


def test_the_end_of_records_is_known_however_they_are_cut() -> None:
    stream = b"".join(b"\x17\x03\x03" + struct.pack(">H", n) + b"x" * n for n in (0, 1, 300, 16_384, 7))
    ends = {5, 11, 316, 16_705, 16_717}
    for cut in (1, 2, 3, 5, 6, 311, 5000, len(stream)):
        records = Records()
        for at in range(0, len(stream), cut):
            records.feed(stream[at : at + cut])
            assert records.partial == (min(at + cut, len(stream)) not in ends), (cut, at)


# --- whoever is not welcome ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "first", [b"\x00\x00\x00\x0b\x81\xa3cmd\xa5Hello", b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x00\x00"]
)
def test_a_plain_client_gets_an_alert_and_a_close(encrypted: Any, first: bytes) -> None:
    server, authority = encrypted
    line = server.connect()
    line.sock.sendall(first)
    got = b""
    while piece := line.sock.recv(4096):
        got += piece
    assert got == ALERT_NO_TLS
    line.close()
    line = server.connect(tls=authority.context())
    assert line.ask(cmd="Ping")["ok"]
    line.close()


def test_handshakes_have_a_deadline(start: Start, authority: Any, files: tuple[str, ...]) -> None:
    server = start(*files, QCORE_TLS_HANDSHAKE_TIMEOUT_MS="300")
    good = server.connect(tls=authority.context())
    silent, dripping = server.connect(), Machine(authority.context(), server.port)
    with pytest.raises(ssl.SSLWantReadError):
        dripping.tls.do_handshake()
    dripping.sock.sendall(dripping.outgoing.read()[:100])
    assert silent.ended()
    assert dripping.sock.recv(1) == b""
    assert good.ask(cmd="Ping")["ok"]  # it has been silent for longer
    for peer in (silent, good):
        peer.close()
    dripping.sock.close()


def test_a_part_of_a_record_has_the_deadline_of_a_part_of_a_frame(
    start: Start, authority: Any, files: tuple[str, ...]
) -> None:
    server = start(*files, TCP_IDLE_TIMEOUT_MS="300")
    idle = server.connect(tls=authority.context())
    assert idle.ask(cmd="Ping")["ok"]
    frame = idle.frame(cmd="Ping")
    half_record, half_frame = (Machine(authority.context(), server.port) for _ in range(2))
    for machine in (half_record, half_frame):
        machine.shake_hands()
    half_record.sock.sendall(half_record.encrypt(frame)[:-1])
    half_frame.sock.sendall(half_frame.encrypt(frame[:-1]))
    for machine in (half_record, half_frame):
        while machine.sock.recv(4096):  # the farewell of TLS may come first
            pass
        machine.sock.close()
    assert idle.ask(cmd="Ping")["ok"]
    idle.close()


def test_who_does_not_read_is_cut_off(start: Start, authority: Any, files: tuple[str, ...]) -> None:
    """The bound counts what TLS has made of the replies."""
    server = start(*files, TCP_MAX_WRITE_QUEUE_BYTES=str(1 << 20))
    reader = server.connect(tls=authority.context())
    assert reader.ask(cmd="PUSH", queue="q", jobId="a", data=os.urandom(1 << 20))["ok"]
    lazy = server.connect(tls=authority.context(), receive_buffer=4096)
    lazy.send(*(lazy.frame(cmd="GetJob", id="a") for _ in range(50)))
    assert lazy.ended()
    with pytest.raises(OSError):  # noqa: PT011  reset, or a broken pipe
        lazy.send(lazy.frame(cmd="Ping"))
    assert reader.ask(cmd="GetJob", id="a")["ok"]
    assert server.resident_mib() < 400
    for line in (reader, lazy):
        line.close()


def test_many_handshakes_at_once_hold_nobody_up(encrypted: Any) -> None:
    server, authority = encrypted
    good = server.connect(tls=authority.context())
    context = authority.context()
    opened: list[Any] = []
    ready = threading.Barrier(9)

    def run() -> None:
        ready.wait()
        opened.extend(server.connect(tls=context) for _ in range(10))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    ready.wait()
    while any(thread.is_alive() for thread in threads):
        assert good.ask(cmd="Ping")["ok"]
    for thread in threads:
        thread.join()
    assert len(opened) == 80
    for line in opened:
        assert line.ask(cmd="Ping")["ok"]
        line.close()
    good.close()


def test_memory_of_a_connection_does_not_stay(encrypted: Any) -> None:
    """Buffers of TLS keep their largest size: what goes through at once is bounded."""
    server, authority = encrypted
    lines = [server.connect(tls=authority.context()) for _ in range(8)]
    assert lines[0].ask(cmd="PUSH", queue="q", jobId="a", data=b"x" * (8 << 20))["ok"]
    before = server.resident_mib()
    for line in lines:
        assert line.ask(cmd="GetJob", id="a")["ok"]
    assert server.resident_mib() - before < 30
    for line in lines:
        line.close()


def test_a_goodbye_says_that_nothing_is_missing(start: Start, authority: Any, files: tuple[str, ...]) -> None:
    server = start(*files)
    line = server.connect(tls=authority.context())
    assert line.ask(cmd="Ping")["ok"]
    line.sock.suppress_ragged_eofs = False
    assert server.stop() == 0
    assert line.sock.recv(1) == b""  # a cut would raise
    line.close()


# --- certificates of clients, and new ones of the server --------------------------------------


def test_clients_may_need_a_certificate(start: Start, authority: Any, files: tuple[str, ...]) -> None:
    server = start(*files, "--tls-client-ca", authority.file)
    cert, key = authority.issue("client", "somebody")
    line = server.connect(tls=authority.context())
    with pytest.raises((ssl.SSLError, ConnectionResetError)):
        line.ask(cmd="Ping")
    line.close()
    context = authority.context()
    context.load_cert_chain(cert, key)
    line = server.connect(tls=context)
    assert line.ask(cmd="Ping")["ok"]
    line.close()
    place = f"tcps://localhost:{server.port}?ca_file={authority.file}"
    with Queue("q", f"{place}&cert_file={cert}&key_file={key}") as queue:
        assert queue.counts().total == 0
    with Queue("q", place) as queue, pytest.raises(ConnectionLost):
        queue.counts()


def serial(line: Any) -> str:
    return str(line.sock.getpeercert()["serialNumber"])


def test_a_new_certificate_is_read_on_sighup(start: Start, authority: Any, files: tuple[str, ...]) -> None:
    server = start(*files)
    old = server.connect(tls=authority.context())
    authority.issue("server")  # into the same files
    server.hang_up()
    server.log_until("new connections get the certificate")
    new = server.connect(tls=authority.context())
    assert serial(new) != serial(old)
    # Half of a new pair: the old one goes on.
    Path(files[1]).write_bytes(b"not a certificate")
    server.hang_up()
    said = server.log_until("the certificate stays as it was")
    assert "not a certificate" not in said
    newer = server.connect(tls=authority.context())
    assert serial(newer) == serial(new)
    for line in (old, new, newer):
        assert line.ask(cmd="Ping")["ok"]
        line.close()


def test_without_files_sighup_changes_nothing(start: Start) -> None:
    server = start()
    line = server.connect()
    server.hang_up()
    server.log_until("no files to be read again")
    assert line.ask(cmd="Ping")["ok"]
    line.close()


# --- our clients --------------------------------------------------------------------------------


@pytest.fixture
def place(start: Start, authority: Any, files: tuple[str, ...]) -> str:
    server = start(*files, "--token", "s3cret")
    return f"tcps://localhost:{server.port}?token=s3cret&ca_file={authority.file}"


def test_queue_and_worker(place: str) -> None:
    with Queue("q", place) as queue, Worker(queue, lambda job: len(job.data)):
        job = queue.add("count", b"x" * 300_000)
        assert job.result(timeout=30) == 300_000
        assert str(queue.client.target).startswith("tcps://localhost:")


def test_an_unknown_authority_is_refused(place: str, tmp_path: Path) -> None:
    for url in (place.partition("&")[0], f"{place.partition('&')[0]}&server_name=other.example"):
        with Queue("q", url) as queue, pytest.raises(ConnectionLost, match="is not trusted") as caught:
            queue.counts()
        assert "s3cret" not in str(caught.value)
    with Queue("q", f"{place.partition('&')[0]}&verify=no") as queue:
        assert queue.counts().total == 0


def test_another_name_is_refused(place: str) -> None:
    other = f"{place}&server_name=other.example"
    with Queue("q", other) as queue, pytest.raises(ConnectionLost, match=r"not trusted.*other\.example"):
        queue.counts()
    with Queue("q", place.replace("localhost", "127.0.0.1") + "&server_name=localhost") as queue:
        assert queue.counts().total == 0


def test_the_wrong_kind_of_port_is_named(start: Start, place: str) -> None:
    plain = "tcp" + place.partition("&")[0][4:]
    with Queue("q", plain) as queue, pytest.raises(ProtocolError, match="speaks TLS: name it tcps://"):
        queue.counts()
    other = f"tcps://localhost:{start().port}"
    with Queue("q", other) as queue, pytest.raises(ConnectionLost, match="speaks no TLS"):
        queue.counts()
