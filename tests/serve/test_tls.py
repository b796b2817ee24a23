"""HTTPS, with a certificate that is made here."""

import ssl

import httpx
import pytest
from certificate import written
from server_script import make_service
from test_server import Visitor

from spillcache.config import EngineConfig, ServeConfig, Settings, TlsFiles
from spillcache.errors import ConfigError
from spillcache.serve.server import run_server


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
