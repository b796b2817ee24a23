"""What the server says at its start."""

import dataclasses
import logging
from pathlib import Path

import pytest
from fake_service import FakeEngine, FakeService

from spillcache.config import GIB, MIB, EngineConfig, Settings, StoreConfig
from spillcache.serve import start_report
from spillcache.store.block_store import BlockStore

TEST = {"passed": True, "exact": True, "detail": "640 restored tokens: bit-identical to cold"}


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.INFO, "spillcache.serve")

    def report(store=None, template="{{ messages }}", chat_template=None, **cache):
        model = EngineConfig(Path("m.gguf"), chat_template=chat_template)
        service = FakeService(Settings(model, store=store))
        service.engine_in_use = FakeEngine(template)
        service.health = lambda: {"cache": {"self_test": TEST, **cache}}
        start_report.log_start(service)
        return [record.getMessage() for record in caplog.records]

    return report


def test_without_a_disk(said):
    (line,) = said()
    assert "context 4,096 tokens, 2 slots; no disk cache; self-test passed: 640 restored" in line


def test_with_a_disk(said, tmp_path):
    config = StoreConfig(tmp_path / "d", quota_bytes=64 * MIB, min_free_bytes=0)
    with BlockStore.open(config):
        (line,) = said(config, disk={"on": True, "reason": ""})
    assert f"disk cache {tmp_path / 'd'}, " in line
    assert "of 64.0 MiB used; self-test" in line


def test_why_the_disk_is_off(said, tmp_path):
    config = StoreConfig(tmp_path / "d", quota_bytes=64 * MIB)
    verdict = {"passed": False, "exact": False, "detail": "no effect"}
    with BlockStore.open(config):
        off = {"on": False, "reason": "self-test: no effect"}
        (line,) = said(config, disk=off, self_test=verdict)
    assert "off for now: self-test: no effect; self-test FAILED: no effect" in line


def test_a_directory_that_can_not_be_read(said, tmp_path):
    config = StoreConfig(tmp_path / "gone")
    warning, line = said(config, disk={"on": False, "reason": ""})
    assert "can't be looked at" in warning
    assert f"disk cache {tmp_path / 'gone'}, off for now: not open" in line


def test_a_quota_that_the_filesystem_can_not_give(said, tmp_path, monkeypatch):
    config = StoreConfig(tmp_path / "d", quota_bytes=64 * MIB)
    with BlockStore.open(config) as store:
        usage = dataclasses.replace(
            store.usage(), quota_bytes=64 * GIB, free_bytes=9 * GIB, allocated_bytes=GIB
        )
        monkeypatch.setattr(start_report, "_usage", lambda _: usage)
        _, warning = said(config, disk={"on": True})
        assert warning.startswith(
            "--cache-disk-size is 64.0 GiB, but the filesystem has 9.0 GiB free and the cache uses "
            "1.0 GiB"
        )
        fits = dataclasses.replace(usage, quota_bytes=10 * GIB)
        monkeypatch.setattr(start_report, "_usage", lambda _: fits)
        assert not any("--cache-disk-size" in line for line in said(config)[2:])


@pytest.mark.parametrize(
    ("template", "asked", "warned"),
    [("gemma", None, True), ("gemma", "gemma", False), ("{{ x }}", None, False)],
)
def test_a_model_without_a_template(said, template, asked, warned):
    lines = said(template=template, chat_template=asked)
    assert any("no chat template; the built-in gemma" in line for line in lines) == warned
