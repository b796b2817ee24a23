"""``-hf``: through a hub that is made up, for the real one is on the network."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from spillcache.cli import serve_command
from spillcache.cli.hub_model import hub_model
from spillcache.config import Settings
from spillcache.errors import ConfigError, ModelLoadError

FILES = [
    "README.md",
    "m-Q4_K_M.gguf",
    "m-Q8_0.gguf",
    "mmproj-Q4_K_M.gguf",
    "big/b-BF16-00001-of-00002.gguf",
    "big/b-BF16-00002-of-00002.gguf",
]


class Hub(ModuleType):
    """huggingface_hub, as far as it is used."""

    def __init__(self, root: Path) -> None:
        super().__init__("huggingface_hub")
        self.root = root
        self.files = list(FILES)
        self.asked: list[tuple[Any, ...]] = []
        self.error: Exception | None = None

    def HfApi(self, token: str | None = None) -> "Hub":
        self.asked.append(("api", token))
        return self

    def list_repo_files(self, repo: str) -> list[str]:
        if self.error is not None:
            raise self.error
        self.asked.append(("list", repo))
        return self.files

    def hf_hub_download(
        self, repo: str, name: str, *, token: str | None, local_files_only: bool
    ) -> str:
        self.asked.append(("file", name, token, local_files_only))
        path = self.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"GGUF")
        return str(path)

    def snapshot_download(self, repo: str, *, local_files_only: bool) -> str:
        assert local_files_only
        return str(self.root)

    def fetched(self) -> list[str]:
        return [asked[1] for asked in self.asked if asked[0] == "file"]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hub:
    made = Hub(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", made)
    return made


@pytest.mark.parametrize(
    ("repo", "file", "fetched"),
    [
        ("u/r", None, ["m-Q4_K_M.gguf"]),
        ("u/r:q8_0", None, ["m-Q8_0.gguf"]),
        ("u/r:Q8", None, ["m-Q8_0.gguf"]),
        ("u/r:Q8_0", "m-Q4_K_M.gguf", ["m-Q4_K_M.gguf"]),
        ("u/r:BF16", None, FILES[-2:]),
    ],
)
def test_which_files_are_fetched(hub: Hub, repo: str, file: str | None, fetched: list[str]) -> None:
    path = hub_model(repo, file, "secret")
    assert hub.fetched() == fetched
    assert path == hub.root / fetched[0]
    assert ("api", "secret") in hub.asked
    assert ("list", "u/r") in hub.asked


def test_the_first_where_the_usual_one_is_not_there(hub: Hub) -> None:
    hub.files = ["b.gguf", "a.gguf"]
    assert hub_model("u/r").name == "a.gguf"


def test_offline(hub: Hub) -> None:
    (hub.root / "m-Q4_K_M.gguf").write_bytes(b"GGUF")
    assert hub_model("u/r", offline=True).name == "m-Q4_K_M.gguf"
    assert hub.asked == [("file", "m-Q4_K_M.gguf", None, True)]


@pytest.mark.parametrize(
    ("repo", "file", "says"),
    [
        ("u/r:Q2_K", None, "u/r has not Q2_K in a GGUF file; it has big/b-BF16"),
        ("u/r", "x.gguf", "u/r has no file x.gguf"),
    ],
)
def test_what_there_is_not(hub: Hub, repo: str, file: str | None, says: str) -> None:
    with pytest.raises(ModelLoadError, match=says):
        hub_model(repo, file)


def test_no_model_at_all(hub: Hub) -> None:
    hub.files = ["README.md"]
    with pytest.raises(ModelLoadError, match="has not a GGUF file; it has none"):
        hub_model("u/r")


def test_the_hubs_errors_are_told_in_a_line(hub: Hub) -> None:
    hub.error = OSError("no\nnetwork")
    with pytest.raises(ModelLoadError, match="u/r can't be fetched: no network"):
        hub_model("u/r")


@pytest.mark.parametrize("repo", ["r", "u/r/x", "../r", "u/", "u /r"])
def test_names_of_repositories(hub: Hub, repo: str) -> None:
    with pytest.raises(ConfigError, match="is not USER/REPO"):
        hub_model(repo)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelLoadError, match=r"pip install 'spillcache\[hf\]'"):
        hub_model("u/r")


def test_serve(cli: Any, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Settings] = []

    def run_server(settings: Settings) -> int:
        served.append(settings)
        return 7

    monkeypatch.setattr(serve_command, "_run_server", run_server)
    assert cli("serve", "-hf", "u/r:Q8_0", "-hft", "secret").code == 7
    assert served[0].engine.model == hub.root / "m-Q8_0.gguf"
    assert cli("serve", "-hf", "u/r", "-hff", "m-Q8_0.gguf", "--offline").code == 7
