"""Slots saved to files by the server as users run it, killed, and started again."""

import httpx
import pytest
from fake_service import wait_until
from test_server_e2e import Server, running

pytestmark = pytest.mark.model
PROMPT = {
    "prompt": list(range(3, 303)),
    "temperature": 0,
    "ignore_eos": True,
    "return_tokens": True,
}


def act(server: Server, action: str, name: str = "a.slot", slot: int = 0) -> httpx.Response:
    body = {} if action == "erase" else {"filename": name}
    return server.http.post(f"/slots/{slot}", params={"action": action}, json=body)


def test_save_kill_restart_restore_and_the_next_tokens_are_the_same(gguf_model, tmp_path):
    flags = ["--slot-save-path", str(tmp_path / "slots"), "--slot-save-min-free", "0"]
    flags += ["--cache-ram", "0"]
    with running(gguf_model("qwen35"), tmp_path / "log", *flags) as server:
        first = server.http.post("/completion", json=PROMPT | {"n_predict": 20}).json()
        turn = PROMPT | {"prompt": [*PROMPT["prompt"], *first["tokens"], 9], "n_predict": 32}
        saved = act(server, "save").json()
        assert (saved["id_slot"], saved["filename"], saved["n_saved"]) == (0, "a.slot", 319)
        assert saved["n_written"] == (tmp_path / "slots" / "a.slot").stat().st_size
        assert (tmp_path / "slots").stat().st_mode & 0o777 == 0o700
        wanted = server.http.post("/completion", json=turn).json()
    with running(gguf_model("qwen35"), tmp_path / "log2", *flags) as server:
        restored = act(server, "restore")
        assert restored.json()["n_restored"] == 319
        assert restored.json()["n_read"] == saved["n_written"]
        again = server.http.post("/completion", json=turn).json()
        assert again["tokens"] == wanted["tokens"]
        assert again["timings"]["cache"]["live"] == 319
        assert act(server, "erase").json() == {"id_slot": 0, "n_erased": 321 + 31}
        assert act(server, "restore", "b.slot").status_code == 404
        assert act(server, "restore", "NUL.txt").status_code == 400
        assert act(server, "restore", slot=1).status_code == 400
        assert server.stop() == 0


def test_the_whole_way_with_a_disk_and_a_key(gguf_model, tmp_path):
    """A salted, encrypted slot file moves to another directory."""
    (tmp_path / "key").write_bytes(b"k" * 32)
    (tmp_path / "key").chmod(0o600)

    def flags(name):
        key = ["--cache-disk-key-file", str(tmp_path / "key")]
        return [*key, "--cache-disk", str(tmp_path / f"disk-{name}"), "--slot-save-path",
                str(tmp_path / name), "--slot-save-min-free", "0", "--cache-disk-min-free", "0",
                "--cache-disk-size", "1GiB", "--cache-session-headers", "x-session-id"]  # fmt: skip

    asked = PROMPT | {"cache_salt": "me", "n_predict": 4}
    with_session = {"x-session-id": "a-secret-session"}
    with running(gguf_model("gemma3"), tmp_path / "log", *flags("one")) as server:
        answer = server.http.post("/completion", json=asked, headers=with_session)
        assert answer.is_success
        assert act(server, "save").is_success
        texts = [server.http.get(path).text for path in ("/slots", "/metrics", "/health")]
        assert not any("a-secret-session" in text for text in [*texts, answer.text])
        assert server.stop() == 0
    assert "a-secret-session" not in (tmp_path / "log").read_text()
    (tmp_path / "two").mkdir()
    (tmp_path / "one" / "a.slot").rename(tmp_path / "two" / "b")
    with running(gguf_model("gemma3"), tmp_path / "log2", *flags("two")) as server:
        assert wait_until(lambda: act(server, "restore", "b").status_code != 503)
        assert act(server, "restore", "b").json()["n_restored"] == 303
        other = server.http.post("/completion", json=asked | {"cache_salt": "you"}).json()
        assert other["timings"]["cache_n"] == 0
        assert act(server, "restore", "b").json()["n_restored"] == 303
        again = server.http.post("/completion", json=asked).json()
        assert again["timings"]["cache"]["live"] >= 256
        assert again["tokens"] == answer.json()["tokens"]
        assert server.stop() == 0


def test_without_the_flag_it_is_off(gguf_model, tmp_path):
    with running(gguf_model("llama"), tmp_path / "log") as server:
        answer = act(server, "save")
        assert (answer.status_code, answer.json()["error"]["code"]) == (501, "SLOT_FILES_OFF")
        assert server.stop() == 0
