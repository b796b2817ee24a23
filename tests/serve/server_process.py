"""``spillcache serve`` as users run it: a process, and clients that speak to it."""

import re
import signal
import subprocess
import sys

import httpx
import openai
from fake_service import wait_until


class Server:
    """``spillcache serve`` in a process of its own; ``stop`` tells its exit code."""

    def __init__(self, model, log, *flags):
        command = [sys.executable, "-m", "spillcache", "serve", "-m", str(model), "--port", "0"]
        self.log = log
        with open(log, "w") as file:
            self.process = subprocess.Popen(
                [*command, "-c", "4096", "--threads", "1", "--cache-restore", "always", *flags],
                stderr=file,
            )
        try:
            assert wait_until(lambda: self._url() or self.process.poll() is not None, 60)
            self.url = self._url()
            assert self.url, self.log.read_text()
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        self.http = httpx.Client(base_url=self.url, timeout=60)
        self.ai = openai.OpenAI(
            base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60
        )

    def _url(self):
        found = re.search(r"listening on (http://\S+)\n", self.log.read_text())
        return found and found[1]

    def metric(self, name):
        (line,) = [
            line
            for line in self.http.get("/metrics").text.splitlines()
            if line.startswith(f"{name} ")
        ]
        return float(line.split()[1])

    def stop(self, timeout_s=30):
        self.http.close()
        self.ai.close()
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def close(self):
        """However it stands."""
        self.kill()

    def kill(self):
        self.http.close()
        self.ai.close()
        self.process.kill()
        self.process.wait()
