"""Every kind of memory goes through a slot file and a kill; odd things in the directory don't."""

import os
import stat

import pytest
from models import KINDS
from test_server_e2e import running
from test_slot_files_e2e import PROMPT, act

pytestmark = pytest.mark.model
TOKENS = 32


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_save_kill_restart_restore_and_the_next_tokens(gguf_model, tmp_path, kind):
    flags = ["--slot-save-path", str(tmp_path / "slots"), "--slot-save-min-free", "0"]
    flags += ["--cache-ram", "0"]
    with running(gguf_model(kind), tmp_path / "log", *flags) as server:
        first = server.http.post("/completion", json=PROMPT | {"n_predict": 8}).json()
        turn = PROMPT | {"prompt": [*PROMPT["prompt"], *first["tokens"], 9], "n_predict": TOKENS}
        saved = act(server, "save").json()
        wanted = server.http.post("/completion", json=turn).json()
        assert len(wanted["tokens"]) == TOKENS
    assert server.process.returncode == -9
    with running(gguf_model(kind), tmp_path / "log2", *flags) as server:
        assert act(server, "restore").json()["n_restored"] == saved["n_saved"]
        again = server.http.post("/completion", json=turn).json()
        assert again["tokens"] == wanted["tokens"]
        assert again["timings"]["cache"] == {"live": saved["n_saved"], "ram": 0, "disk": 0}


def test_what_is_no_plain_file(gguf_model, tmp_path):
    """Nothing is read through it, or written to what it leads to."""
    folder, precious = tmp_path / "slots", tmp_path / "precious"
    precious.write_bytes(b"mine")
    flags = ["--slot-save-path", str(folder), "--slot-save-min-free", "0"]
    with running(gguf_model("llama"), tmp_path / "log", *flags) as server:
        assert server.http.post("/completion", json=PROMPT | {"n_predict": 2}).is_success
        assert act(server, "save", "whole").is_success
        os.mkfifo(folder / "pipe")
        (folder / "link").symlink_to(folder / "whole")
        (folder / "outside").symlink_to(precious)
        (folder / "dangling").symlink_to(tmp_path / "nowhere")
        os.link(precious, folder / "second")
        (folder / "folder").mkdir()
        for name in ("pipe", "link", "outside", "dangling", "second", "folder"):
            answer = act(server, "restore", name)
            assert (name, answer.status_code) == (name, 400)
            error = answer.json()["error"]
            assert (error["code"], error["kind"]) == ("SLOT_FILE_INVALID", "invalid")
        for name in ("../whole", "..", "a/b", "/etc/passwd", "", "nul"):
            for action in ("save", "restore"):
                answer = act(server, action, name)
                assert (name, answer.status_code) == (name, 400)
                assert answer.json()["error"]["param"] == "filename"
        for name in ("link", "outside", "dangling", "second"):
            assert (name, act(server, "save", name).status_code) == (name, 200)
            assert (folder / name).is_file()
            assert not (folder / name).is_symlink()
        for name in ("folder", "pipe"):
            answer = act(server, "save", name)
            assert (name, answer.status_code) == (name, 400)
            assert answer.json()["error"]["code"] == "SLOT_FILE_INVALID"
        assert stat.S_ISFIFO((folder / "pipe").stat().st_mode)
        assert not any((folder / "folder").iterdir())
        assert not (tmp_path / "nowhere").exists()
        assert server.stop() == 0
    assert precious.read_bytes() == b"mine"
