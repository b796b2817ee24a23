"""What the library can compute on."""

from pathlib import Path

import pytest

from spillcache.engine.llama_backends import Device, devices
from spillcache.engine.llama_library import library


@pytest.mark.model
def test_there_is_always_a_processor() -> None:
    found = library().backends
    assert any(device.backend == "CPU" and device.name == "CPU" for device in found)
    for device in found:
        assert str(device).startswith(f"{device.backend}: ")
        assert device.description


def test_a_device_in_words() -> None:
    assert str(Device("CUDA", "CUDA0", "a card", 3 << 30)) == "CUDA: a card, 3.0 GiB"
    assert str(Device("CPU", "CPU", "", 0)) == "CPU: CPU"


def test_libraries_that_can_not_be_asked(tmp_path: Path) -> None:
    broken = tmp_path / "libggml.so"
    broken.write_bytes(b"no library")
    assert devices([broken]) == devices([]) == devices([tmp_path / "libllama.so"]) == []
