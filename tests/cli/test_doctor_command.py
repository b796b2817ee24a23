"""The doctor: what is well, what could be better, and what does not work."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from care_tools import RECORD, RED, config, put

from spillcache.cli import doctor_directory, doctor_engine, doctor_speed
from spillcache.cli.bench_client import Answer
from spillcache.cli.doctor_report import Finding
from spillcache.engine.base import SelfTest
from spillcache.errors import BenchError, EngineLibraryError, StoreIOError
from spillcache.store.block_store import BlockStore, Usage
from spillcache.store.probe import Health


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quick look at the speed, and one that does not depend on what else the disk does."""
    monkeypatch.setattr(doctor_speed, "_OBJECTS", 4)
    monkeypatch.setattr(doctor_speed, "_GROUP", 2)
    monkeypatch.setattr(doctor_speed, "_SLOW_BYTES_PER_S", 1)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "cache"
    with BlockStore.open(config(path)) as store:
        put(store, RED, 3)
    return path


def states(findings: list[dict[str, str]]) -> dict[str, str]:
    return {each["name"]: each["state"] for each in findings}


def snapshot(path: Path) -> list[tuple[str, int]]:
    return sorted((str(p), p.lstat().st_size) for p in path.rglob("*") if p.name != "lock.mdb")


def test_a_store_that_is_well(cli: Any, directory: Path) -> None:
    before = snapshot(directory.parent)
    ended = cli("doctor", str(directory))
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines()[-1] == "READY"
    assert "holds a store of this format" in ended.out
    assert "3 objects, 1 segment" in ended.out
    assert "written durably" in ended.out
    assert snapshot(directory.parent) == before


def test_json(cli: Any, directory: Path) -> None:
    report = json.loads(cli("doctor", "--cache-disk", str(directory), "--json").out)
    assert report["path"] == str(directory)
    assert report["ready"]
    found = states(report["findings"])
    assert found.pop("filesystem") in ("ok", "note")
    assert found.pop("direct I/O") in ("ok", "note")
    names = ["directory", "permissions", "index", "free space", "quota", "contents", "speed"]
    assert found == dict.fromkeys(names, "ok")


@pytest.mark.parametrize("kind", ["missing", "empty"])
def test_before_the_first_server(cli: Any, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a" / "cache"
    if kind == "empty":
        path.mkdir(parents=True)
    ended = cli("doctor", str(path))
    assert ended.code == 0
    assert ("is empty" if kind == "empty" else "is not there yet") in ended.out
    assert path.exists() == (kind == "empty")
    assert not any(tmp_path.rglob("spillcache.json"))


@pytest.mark.parametrize("kind", ["file", "foreign", "settings", "below a file"])
def test_a_directory_that_can_not_be_used(cli: Any, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "cache"
    if kind in ("file", "below a file"):
        path.write_text("mine")
    else:
        path.mkdir()
        name = "letter.txt" if kind == "foreign" else "spillcache.json"
        (path / name).write_text("mine")
    ended = cli("doctor", str(path / "x" if kind == "below a file" else path))
    assert ended.code == 1
    assert ended.out.startswith("bad  directory")
    assert ended.out.endswith("to do: directory: choose or make another directory\nNOT READY\n")
    assert "speed" not in ended.out


def test_others_may_read_it(cli: Any, directory: Path) -> None:
    (directory / "segments").chmod(0o755)
    for name in "abcd":
        (directory / name).write_text("x")
        (directory / name).chmod(0o644)
    ended = cli("doctor", str(directory))
    assert ended.code == 0
    assert "and 2 more; they hold prompts" in ended.out
    assert f"could be better: permissions: chmod -R go= {directory}\n" in ended.out


def test_a_damaged_index(cli: Any, directory: Path) -> None:
    data = directory / "index" / "data.mdb"
    data.write_bytes(b"\xff" * data.stat().st_size)
    ended = cli("doctor", str(directory))
    assert ended.code == 1
    assert f"to do: index: run: spillcache repair {directory}; nothing but" in ended.out
    assert cli("repair", str(directory)).code == 0
    assert cli("doctor", str(directory)).code == 0


def test_an_index_in_use_and_one_that_can_not_be_told(
    cli: Any, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with BlockStore.open(config(directory)):
        assert "in use by a server, and readable" in cli("doctor", str(directory)).out
    monkeypatch.setattr(doctor_directory, "health", lambda _: Health.UNKNOWN)
    ended = cli("doctor", str(directory))
    assert ended.code == 0
    assert "could not be looked through" in ended.out

    def fails(*_: object) -> None:
        raise StoreIOError("the disk failed")

    with monkeypatch.context() as patch:
        patch.setattr(BlockStore, "inspect", fails)
        ended = cli("doctor", str(directory))
    assert ended.code == 1
    assert "the disk failed" in ended.out
    assert "repair" not in ended.out

    def refuses(_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(doctor_directory, "alone_with", refuses)
    assert "Input/output error" in cli("doctor", str(directory)).out


def test_space_and_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    gib = 1 << 30
    space = doctor_directory._free_space
    assert space(8 * gib, 4 * gib).state == "ok"
    assert space(4 * gib + 1, 4 * gib).state == "note"
    assert space(4 * gib, 4 * gib).state == "bad"
    quota = doctor_directory._quota
    assert quota(Usage(5, 10, 0, 0, 1, 1)).state == "ok"
    assert quota(Usage(11, 10, 0, 0, 1, 1)) == Finding(
        "quota", "note", "11 B of 10 B: too much", "run: spillcache gc"
    )


def test_hidden_namespaces_and_quarantine_are_told(cli: Any, directory: Path) -> None:
    with BlockStore.open(config(directory)) as store:
        store.invalidate(RED.id, "x")
    (directory / "quarantine" / RECORD).write_bytes(b"x")
    ended = cli("doctor", str(directory))
    assert ended.code == 0
    assert "3 objects, 1 segment, 1 hidden namespace, 1 damaged record" in ended.out


def test_memory_is_not_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_directory, "filesystem_of", lambda _: "tmpfs")
    assert doctor_directory._filesystem(tmp_path).state == "note"
    monkeypatch.setattr(doctor_directory, "filesystem_of", lambda _: None)
    assert doctor_directory._filesystem(tmp_path).text == "not told by this system"


def test_a_file_that_goes_meanwhile_is_nobodys(tmp_path: Path) -> None:
    assert not doctor_directory._is_wide(tmp_path / "gone")


def test_the_speed_of_a_slow_and_of_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []
    findings = list(doctor_speed.look_at_speed(tmp_path, lambda n, of: told.append((n, of))))
    assert [each.name for each in findings] == ["direct I/O", "speed"]
    assert told[-1][0] < told[-1][1]
    monkeypatch.setattr(doctor_speed, "_SLOW_BYTES_PER_S", 1 << 60)
    monkeypatch.setattr(doctor_speed, "_measure", lambda *_: ("buffered+dontneed", 1.0, 2.0))
    direct, speed = doctor_speed.look_at_speed(tmp_path, lambda *_: None)
    assert (direct.state, speed.state) == ("note", "note")
    assert speed.text == "1 B/s written durably, 2 B/s read: slow"

    def fails(*_: object) -> None:
        raise StoreIOError("the disk failed")

    monkeypatch.setattr(doctor_speed, "_measure", fails)
    (found,) = doctor_speed.look_at_speed(tmp_path, lambda *_: None)
    assert (found.state, "the disk failed" in found.text) == ("bad", True)
    monkeypatch.setattr(doctor_speed, "_QUOTA_BYTES", 1 << 60)
    (found,) = doctor_speed.look_at_speed(tmp_path, lambda *_: None)
    assert (found.state, found.text) == ("note", "not measured: too little space")
    assert list(tmp_path.iterdir()) == []


def test_the_measured_store_lies_on_the_same_filesystem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "cache"
    assert doctor_speed.place_beside(here) == tmp_path
    here.mkdir()
    assert doctor_speed.place_beside(here) == tmp_path
    assert doctor_speed.place_beside(Path("/proc")) == Path("/proc")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryDirectory", refuse)
    assert doctor_speed.place_beside(here) == here


def test_what_a_killed_doctor_left_goes_and_nothing_else(tmp_path: Path) -> None:
    names = (".spillcache-doctor-old", ".spillcache-doctor-new", ".spillcache-x", "mine")
    for name in names:
        (tmp_path / name / "store").mkdir(parents=True)
        if name != names[1]:
            os.utime(tmp_path / name, (0, 0))
    with doctor_speed.workplace(tmp_path / "cache") as work:
        assert work.parent == tmp_path
        assert work.is_dir()
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(names[1:])


def test_within_a_store_its_quota_counts(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the directory is a filesystem of its own."""
    monkeypatch.setattr(doctor_speed, "place_beside", lambda path: path)
    monkeypatch.setattr(doctor_speed, "_QUOTA_BYTES", 1 << 29)
    (found,) = doctor_speed.look_at_speed(directory, lambda *_: None)
    assert found.text == "not measured: too little space"


def test_flags_that_can_not_be_meant(cli: Any, directory: Path) -> None:
    ended = cli("doctor", str(directory), "--restart")
    assert ended.code == 2
    assert "--restart needs a model" in ended.err


def test_a_model_that_is_none(cli: Any, directory: Path) -> None:
    ended = cli("doctor", str(directory), "-m", str(directory / "spillcache.json"))
    assert ended.code == 1
    assert "bad  model" in ended.out
    assert "to do: model: give the path of a GGUF file to -m" in ended.out


def test_a_library_that_is_missing(
    cli: Any, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise EngineLibraryError("the llama.cpp engine is not installed")

    monkeypatch.setattr("spillcache.engine.llama_library.library", missing)
    ended = cli("doctor", str(directory), "-m", "x.gguf")
    assert ended.code == 1
    assert "to do: engine: pip install 'spillcache[llama]'" in ended.out


@pytest.mark.model
def test_a_model_and_a_restart(cli: Any, directory: Path, gguf_model: Any) -> None:
    model = gguf_model("llama")
    words = ("-m", str(model), "--restart", "--", "--threads", "1")
    ended = cli("doctor", str(directory), *words)
    assert ended.code == 0, ended.out
    lines = {line[5:17].strip(): line for line in ended.out.splitlines()}
    assert "state has kv" in lines["model"]
    assert "bit-identical to cold" in lines["self-test"]
    assert "639 of 640 tokens came from disk" in lines["restart"]
    assert "the same answer" in lines["restart"]
    assert ended.out.endswith("READY\n")
    assert [p.name for p in directory.parent.iterdir()] == ["cache"]


@pytest.mark.model
def test_a_model_whose_state_can_not_be_restored(
    directory: Path, gguf_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = SelfTest(False, False, "restored state gives other logits")
    monkeypatch.setattr("spillcache.engine.llama_engine.LlamaEngine.self_test", lambda _: verdict)
    model, test = doctor_engine.look_at_model(gguf_model("llama"))
    assert (model.state, test.state) == ("ok", "bad")
    assert test.text == "restored state gives other logits"


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    (found,) = doctor_engine.look_at_model(path)
    assert (found.name, found.state) == ("model", "bad")


def answer(text: str, cached: int) -> Answer:
    fields = dict.fromkeys(Answer.__dataclass_fields__, 0)
    return Answer(**fields | {"text": text, "tokens": [], "cached_tokens": cached})


class Server:
    """Stands for a server process; gives the answers of the test in turn."""

    answers: list[Answer]

    def __init__(self, flags: list[str], log: Path) -> None:
        self.client = self

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def tokenize(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def complete(self, prompt: list[int], count: int) -> Answer:
        assert (len(prompt), count) == (640, 16)
        return self.answers.pop(0)

    def stop(self) -> None:
        if not self.answers:
            return


@pytest.mark.parametrize(
    ("second", "state", "said"),
    [
        (answer("a", 576), "ok", "the same answer"),
        (answer("b", 576), "bad", "another answer"),
        (answer("a", 0), "bad", "0 of 640"),
    ],
)
def test_what_a_restart_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: Answer, state: str, said: str
) -> None:
    monkeypatch.setattr(doctor_engine, "BenchServer", Server)
    Server.answers = [answer("a", 0), second]
    (found,) = doctor_engine.look_at_restart(tmp_path, Path("m.gguf"), [])
    assert (found.state, said in found.text) == (state, True)


def test_a_server_that_does_not_come_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise BenchError("the server ended with code 1")

    monkeypatch.setattr(doctor_engine, "BenchServer", refuse)
    (found,) = doctor_engine.look_at_restart(tmp_path, Path("m.gguf"), [])
    assert (found.state, "code 1" in found.text) == ("bad", True)
    assert list(tmp_path.iterdir()) == []
