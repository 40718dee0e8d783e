from __future__ import annotations

import ssl

import pytest

from coord_control.spark.wire import tls


class Pair:
    """A client and a driver, joined in memory."""

    def __init__(self, certificate: tls.Certificate, pin: str) -> None:
        self.server = tls.ServerTls(tls.server_context(certificate))
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = tls.client_context(pin).wrap_bio(self.incoming, self.outgoing)
        self.received = b""
        self.plain = memoryview(bytearray(100))

    def to_server(self) -> None:
        for size in self.server.receive(memoryview(self.outgoing.read()), self.plain):
            self.received += self.plain[:size]
        self.incoming.write(self.server.take())

    def shake_hands(self) -> None:
        for _ in range(2):
            try:
                self.client.do_handshake()
            except ssl.SSLWantReadError:
                self.to_server()
        self.to_server()


@pytest.fixture(scope="module")
def certificate() -> tls.Certificate:
    return tls.make_certificate()


def test_bytes_pass_in_both_directions(certificate: tls.Certificate) -> None:
    pair = Pair(certificate, certificate.pem)
    states = [pair.server.is_ready]
    pair.shake_hands()
    states.append(pair.server.is_ready)
    assert states == [False, True]

    pair.client.write(b"a" * 250)
    pair.to_server()
    assert pair.received == b"a" * 250

    pair.server.encrypt(b"b" * 40_000)
    pair.incoming.write(pair.server.take())
    got = b""
    while len(got) < 40_000:
        got += pair.client.read(65536)
    assert got == b"b" * 40_000


def test_an_idle_connection_is_silent(certificate: tls.Certificate) -> None:
    pair = Pair(certificate, certificate.pem)
    pair.shake_hands()
    assert pair.server.take() == b""
    assert pair.incoming.pending == 0
    assert pair.client.version() == "TLSv1.3"


def test_a_client_accepts_only_the_pinned_certificate(certificate: tls.Certificate) -> None:
    pair = Pair(certificate, tls.make_certificate().pem)
    with pytest.raises(ssl.SSLCertVerificationError):
        pair.shake_hands()


def test_the_pinned_certificate_cannot_vouch_for_others(certificate: tls.Certificate) -> None:
    from cryptography import x509

    parsed = x509.load_pem_x509_certificate(certificate.pem.encode())
    assert not parsed.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 100, b"\x16\x03\x01\xff\xff" + b"x" * 100])
def test_garbage_is_an_error(certificate: tls.Certificate, garbage: bytes) -> None:
    pair = Pair(certificate, certificate.pem)
    with pytest.raises(ssl.SSLError):
        list(pair.server.receive(memoryview(garbage), pair.plain))


def test_an_old_version_of_tls_is_refused_with_an_alert(certificate: tls.Certificate) -> None:
    pair = Pair(certificate, certificate.pem)
    old = tls.client_context(certificate.pem)
    old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLWantReadError):
        old.wrap_bio(pair.incoming, pair.outgoing).do_handshake()
    with pytest.raises(ssl.SSLError):
        pair.to_server()
    assert pair.server.take().startswith(b"\x15")  # the content type of an alert


def test_a_half_record_is_kept_and_counted(certificate: tls.Certificate) -> None:
    pair = Pair(certificate, certificate.pem)
    with pytest.raises(ssl.SSLWantReadError):
        pair.client.do_handshake()
    first = pair.outgoing.read()
    assert list(pair.server.receive(memoryview(first[:50]), pair.plain)) == []
    assert pair.server.held <= 50
    pair.server.receive(memoryview(first[50:]), pair.plain)


def test_an_orderly_end_is_told_apart_from_an_error(certificate: tls.Certificate) -> None:
    pair = Pair(certificate, certificate.pem)
    pair.shake_hands()
    with pytest.raises(ssl.SSLWantReadError):
        pair.client.unwrap()
    with pytest.raises(ssl.SSLZeroReturnError):
        pair.to_server()


def test_the_key_does_not_show(certificate: tls.Certificate) -> None:
    assert "PRIVATE" not in repr(certificate)
    assert "PRIVATE" not in certificate.pem
    assert b"PRIVATE" in certificate.key
