"""TLS between hpcdl's own programs: one self-signed certificate a daemon, trusted because the access file holds it.

The client's side needs the standard library only; making a certificate imports `cryptography`, at that moment.
"""

import errno
import ipaddress
import os
import ssl
from collections.abc import Iterable
from pathlib import Path

from hpcdl.wire.private_files import open_private

VALID_S = 3650 * 86400.0
SKEW_S = VALID_S
"""A certificate is valid from this long before it was made: clocks differ, and are stepped back."""


def make_certificate(hosts: Iterable[str], *, now: float) -> tuple[bytes, bytes]:
    """A new P-256 key and its self-signed certificate, as (certificate PEM, key PEM).

    `hosts`: the names and addresses of the daemon, besides localhost, 127.0.0.1 and ::1. `now`: seconds since 1970;
    the certificate is valid from SKEW_S before to VALID_S after.
    """
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    names: list[x509.GeneralName] = []
    for host in dict.fromkeys(("localhost", "127.0.0.1", "::1", *hosts)):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hpcdl daemon")])
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=False,  # with ca=False: trusting this certificate trusts no other
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.datetime.fromtimestamp(now - SKEW_S, datetime.UTC))
        .not_valid_after(datetime.datetime.fromtimestamp(now + VALID_S, datetime.UTC))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    key_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM), key_pem


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """TLS 1.3 for the daemon's listener, from two PEM files that must be private (NotPrivate is raised otherwise).
    OSError names the first of two that are no certificate and its key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # none of our clients resumes a session; each ticket costs time, and memory for hours
    certificate_fd = open_private(certificate)
    try:
        key_fd = open_private(key)
        try:
            # By descriptor, so that what is loaded is what was checked.
            context.load_cert_chain(f"/proc/self/fd/{certificate_fd}", f"/proc/self/fd/{key_fd}")
        except ssl.SSLError:
            why = f"it and {key.name} are no certificate and its key (remove both, and the start makes new ones)"
            raise OSError(errno.EINVAL, why, str(certificate)) from None
        finally:
            os.close(key_fd)
    finally:
        os.close(certificate_fd)
    return context


NO_CHECK_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which the module ssl does not name."""


def client_context(certificate: str) -> ssl.SSLContext:
    """TLS 1.3 that trusts this one certificate (PEM) and nothing else.

    Whoever has its key is the daemon, on whichever node and address of its allocations, and at whatever time: names
    are not compared, and dates are not looked at, so neither age nor a wrong clock locks its owner out.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # verifies
    context.check_hostname = False
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags |= NO_CHECK_TIME
    context.load_verify_locations(cadata=certificate)
    return context
