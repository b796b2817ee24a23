"""HTTPS, with a certificate that is made here."""

import datetime
import ssl

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from server_script import make_service
from test_server import Visitor

from spillcache.config import EngineConfig, ServeConfig, Settings, TlsFiles
from spillcache.errors import ConfigError
from spillcache.serve.server import run_server


def written(directory, password=None):
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


def settings(files, model):
    return Settings(EngineConfig(model=model), ServeConfig(port=0, tls=files))


def test_it_speaks_https_and_nothing_else(tmp_path):
    files = written(tmp_path)

    def visit(url):
        assert url.startswith("https://127.0.0.1:")
        trusting = ssl.create_default_context(cafile=files.certificate)
        by_name = url.replace("127.0.0.1", "localhost")
        answer = httpx.get(f"{by_name}/health", verify=trusting)
        with pytest.raises(httpx.TransportError):
            httpx.get(by_name.replace("https", "http") + "/health")
        own = httpx.post(
            f"{by_name}/completions",
            json={"prompt": "x"},
            headers={"Origin": by_name},
            verify=trusting,
        )
        return answer.status_code, own.status_code

    visitor = Visitor(visit)
    run = run_server(
        settings(files, tmp_path / "m.gguf"), on_ready=visitor, make_service=make_service("quick")
    )
    visitor.join(5)
    assert (run, visitor.result) == (0, (200, 200))


def test_files_that_are_none(tmp_path):
    files = written(tmp_path)
    swapped = TlsFiles(files.certificate, files.key)
    with pytest.raises(ConfigError, match="no key and its certificate in PEM"):
        run_server(settings(swapped, tmp_path))
    (tmp_path / "other").mkdir()
    other = written(tmp_path / "other")
    with pytest.raises(ConfigError, match=r"\(KEY_VALUES_MISMATCH\)"):
        run_server(settings(TlsFiles(files.key, other.certificate), tmp_path))
    gone = TlsFiles(files.key, tmp_path / "none")
    with pytest.raises(ConfigError, match="No such file"):
        run_server(settings(gone, tmp_path))


def test_nobody_is_asked_for_a_password(tmp_path):
    files = written(tmp_path, b"secret")
    with pytest.raises(ConfigError, match="is encrypted; decrypt it with: openssl pkey"):
        run_server(settings(files, tmp_path))
