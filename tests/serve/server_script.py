"""A server process over the scripted service; run by test_server.py. Arguments: how, and a port."""

import dataclasses
import sys
import threading
import time
from pathlib import Path

from fake_service import FakeEngine, FakeService, Script

from spillcache.config import EngineConfig, ServeConfig, Settings
from spillcache.errors import ModelLoadError
from spillcache.serve.server import run_server
from spillcache.serve.server_log import log_to_stderr


class SlowService(FakeService):
    """Loads, and stops, as slowly as the test says."""

    load_s = 0.0
    stop_s = 0.0
    fails = False
    tokenizer = FakeEngine

    def __init__(self, settings):
        super().__init__(settings)
        self.engine_in_use = self.tokenizer()
        self.state = "loading"
        self.left = threading.Event()

    def start(self):
        threading.Thread(target=self._load, daemon=True).start()

    def _load(self):
        if self.left.wait(self.load_s):
            return
        if self.fails:
            self.failure = ModelLoadError("no such file: model.gguf")
            self.state = "failed"
        else:
            self.state = "ready"

    def stop(self, progress, drain_s=None):
        self.left.set()
        self.state = "stopping"
        progress("saving 1 of 2")
        self.script.go.set()  # running answers come to their end
        for thread in self.threads:
            thread.join(5)
        time.sleep(self.stop_s)
        progress("saving 2 of 2")
        self.state = "stopped"


class StuckEngine(FakeEngine):
    """Its tokeniser does not come back."""

    def tokenize(self, text, **options):
        if "long" not in text:
            return super().tokenize(text, **options)
        print("tokenising", file=sys.stderr, flush=True)
        return threading.Event().wait(3600) or []


KINDS = {
    "quick": {},
    "loading": {"load_s": 60.0},
    "failing": {"load_s": 0.2, "fails": True},
    "stubborn": {"stop_s": 60.0},
    "stuck": {"tokenizer": StuckEngine},
}


def make_service(kind, **script):
    service = type("Service", (SlowService,), KINDS[kind])
    return lambda settings: _scripted(service(settings), script)


def _scripted(service, script):
    service.script = dataclasses.replace(Script(), **script)
    return service


def settings(port=0):
    return Settings(EngineConfig(model=Path("/models/tiny-fake.gguf")), ServeConfig(port=port))


if __name__ == "__main__":
    made = make_service(sys.argv[1])
    with log_to_stderr("info"):
        sys.exit(run_server(settings(int(sys.argv[2])), make_service=made))
