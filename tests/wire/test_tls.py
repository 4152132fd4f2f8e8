import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpcdl.wire.private_files import NotPrivate, atomic_write
from hpcdl.wire.tls import SKEW_S, VALID_S, client_context, make_certificate, server_context


def keep(folder: Path, pair: tuple[bytes, bytes]) -> tuple[Path, Path]:
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    atomic_write(certificate, pair[0])
    atomic_write(key, pair[1])
    return certificate, key


@contextmanager
def server(certificate: Path, key: Path) -> Iterator[int]:
    """A TLS server on loopback that answers one connection with b"hello"; gives its port."""
    context = server_context(certificate, key)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(60)
                try:
                    with context.wrap_socket(connection, server_side=True) as tls:
                        tls.sendall(b"hello")
                except OSError:
                    pass  # the client refused us: what some tests are about

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            thread.join(60)


def dial(port: int, context: ssl.SSLContext, name: str) -> bytes:
    with (
        socket.create_connection(("127.0.0.1", port), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname=name) as tls,
    ):
        assert tls.version() == "TLSv1.3"
        return tls.recv(16)


def test_what_is_no_pair_is_told_with_the_next_step(tmp_path: Path) -> None:
    mine, other = (make_certificate(["n1.example"], now=time.time()) for _ in range(2))
    for pair in ((mine[0], other[1]), (b"nonsense", mine[1])):
        with pytest.raises(OSError, match=r"no certificate and its key .remove both") as told:
            server_context(*keep(tmp_path, pair))
        assert told.value.filename == str(tmp_path / "certificate.pem")


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1", "n1.example", "10.1.2.3"])
def test_the_pinned_certificate_is_trusted_under_its_names(name: str, tmp_path: Path) -> None:
    pair = make_certificate(["n1.example", "10.1.2.3"], now=time.time())
    with server(*keep(tmp_path, pair)) as port:
        assert dial(port, client_context(pair[0].decode()), name) == b"hello"


@pytest.mark.parametrize("made", [-VALID_S - 86_400, SKEW_S + 86_400], ids=["out of date", "of the future"])
def test_its_dates_lock_nobody_out(tmp_path: Path, made: float) -> None:
    pair = make_certificate([], now=time.time() + made)
    with server(*keep(tmp_path, pair)) as port:
        assert dial(port, client_context(pair[0].decode()), "localhost") == b"hello"


def test_another_certificate_is_refused(tmp_path: Path) -> None:
    other = make_certificate([], now=time.time())[0].decode()
    with (
        server(*keep(tmp_path, make_certificate([], now=time.time()))) as port,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        dial(port, client_context(other), "localhost")


def test_the_daemon_of_the_next_allocation_has_the_same_certificate_and_another_name(tmp_path: Path) -> None:
    pair = make_certificate(["n1"], now=time.time())
    with server(*keep(tmp_path, pair)) as port:
        assert dial(port, client_context(pair[0].decode()), "n2") == b"hello"


def test_a_certificate_signed_by_the_pinned_one_is_refused(tmp_path: Path) -> None:
    """Whoever has the daemon's key is the daemon, but its certificate is no authority that makes others."""
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    pinned, pinned_key = make_certificate([], now=time.time())
    issuer = x509.load_pem_x509_certificate(pinned)
    signer = serialization.load_pem_private_key(pinned_key, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    forged = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=True)
        .sign(signer, hashes.SHA256())
    )
    key_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pair = keep(tmp_path, (forged.public_bytes(serialization.Encoding.PEM) + pinned, key_pem))
    with server(*pair) as port, pytest.raises(ssl.SSLCertVerificationError):
        dial(port, client_context(pinned.decode()), "localhost")


def test_it_is_valid_for_ten_years_and_bears_a_slow_clock() -> None:
    from cryptography import x509

    certificate = x509.load_pem_x509_certificate(make_certificate([], now=2_000_000_000.0)[0])
    assert certificate.not_valid_before_utc.timestamp() == 2_000_000_000 - SKEW_S
    assert certificate.not_valid_after_utc.timestamp() == 2_000_000_000 + VALID_S


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    certificate, key = keep(tmp_path, make_certificate([], now=time.time()))
    key.chmod(0o640)
    with pytest.raises(NotPrivate, match="run chmod 600"):
        server_context(certificate, key)


def test_a_clock_that_was_stepped_back_shuts_nobody_out(tmp_path: Path) -> None:
    pair = make_certificate([], now=time.time() + 400 * 86_400)
    with server(*keep(tmp_path, pair)) as port:
        assert dial(port, client_context(pair[0].decode()), "localhost") == b"hello"
