"""A certificate for the loopback, made here."""

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from spillcache.config import TlsFiles


def written(directory: Path, password: bytes | None = None) -> TlsFiles:
    """A key and its self-signed certificate for the loopback."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    lock = (
        serialization.BestAvailableEncryption(password)
        if password
        else serialization.NoEncryption()
    )
    files = TlsFiles(directory / "key.pem", directory / "certificate.pem")
    files.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock)
    )
    files.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return files
