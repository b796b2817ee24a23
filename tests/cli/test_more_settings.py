"""llama-server's flags for sampling, RoPE, devices and metadata, from the command line on."""

from pathlib import Path
from typing import Any

import pytest

from spillcache.cli.more_flags import MORE
from spillcache.config import PlacementConfig, RopeConfig, Settings
from spillcache.serve import server_log


def test_nothing_given_is_nothing_changed(cli: Any, model: str, served: list[Settings]) -> None:
    assert cli("serve", "-m", model).code == 7
    engine, defaults = served[0].engine, served[0].serve.defaults
    assert (engine.rope, engine.placement, engine.overrides) == (
        RopeConfig(),
        PlacementConfig(),
        (),
    )
    assert (engine.mmap, engine.mlock, engine.direct_io) == (True, False, False)
    assert {getattr(defaults, name) for name in ("grammar", "samplers", "logit_bias")} == {None}
    assert defaults.template_variables == {}


def test_sampling(cli: Any, model: str, served: list[Settings]) -> None:
    line = (
        "--repeat-penalty 1.1 --repeat-last-n -1 --presence-penalty 0.5 --frequency-penalty -0.5 "
        "--ignore-eos --typical 0.9 --top-nsigma 1.5 --xtc-probability 0.5 --xtc-threshold 0.2 "
        "--dynatemp-range 0.3 --dynatemp-exp 2 --dry-multiplier 0.8 --dry-base 2 "
        "--dry-allowed-length 3 --dry-penalty-last-n 9 --dry-sequence-breaker \\n "
        "--dry-sequence-breaker x --mirostat 2 --mirostat-lr 0.2 --mirostat-ent 4 "
        "--samplers top-k;temperature -l 5+1.5 --logit-bias 6-inf"
    )
    assert cli("serve", "-m", model, *line.split()).code == 7
    defaults = served[0].serve.defaults
    assert (defaults.repeat_penalty, defaults.repeat_last_n) == (1.1, -1)
    assert (defaults.presence_penalty, defaults.frequency_penalty) == (0.5, -0.5)
    assert defaults.ignore_eos is True
    assert (defaults.typical_p, defaults.top_n_sigma) == (0.9, 1.5)
    assert (defaults.xtc_probability, defaults.xtc_threshold) == (0.5, 0.2)
    assert (defaults.dynatemp_range, defaults.dynatemp_exponent) == (0.3, 2)
    assert (defaults.dry_multiplier, defaults.dry_base) == (0.8, 2)
    assert (defaults.dry_allowed_length, defaults.dry_penalty_last_n) == (3, 9)
    assert defaults.dry_sequence_breakers == ("\n", "x")
    assert (defaults.mirostat, defaults.mirostat_eta, defaults.mirostat_tau) == (2, 0.2, 4)
    assert defaults.samplers == ("top_k", "temperature")
    assert defaults.logit_bias == ((5, 1.5), (6, float("-inf")))
    assert cli("serve", "-m", model, "--sampling-seq", "kt").code == 7
    assert served[1].serve.defaults.samplers == ("top_k", "temperature")
    assert cli("serve", "-m", model, "--dry-sequence-breaker", "none").code == 7
    assert served[2].serve.defaults.dry_sequence_breakers == ()


def test_grammars(cli: Any, model: str, served: list[Settings], tmp_path: Path) -> None:
    gbnf, schema = tmp_path / "g.gbnf", tmp_path / "s.json"
    gbnf.write_text('root ::= "a"')
    schema.write_text('{"type": "null"}')
    for words in (
        ["--grammar", 'root ::= "a"'],
        ["--grammar-file", str(gbnf)],
        ["-j", '{"type": "null"}'],
        ["--json-schema-file", str(schema)],
    ):
        assert cli("serve", "-m", model, *words).code == 7
    found = [settings.serve.defaults.grammar for settings in served]
    assert found == [("gbnf", 'root ::= "a"')] * 2 + [("json_schema", '{"type": "null"}')] * 2


def test_rope_and_places(cli: Any, model: str, served: list[Settings]) -> None:
    line = (
        "--rope-scaling yarn --rope-scale 4 --rope-freq-base 1e6 --yarn-orig-ctx 4096 "
        "--yarn-ext-factor 1 --yarn-attn-factor 0.5 --yarn-beta-slow 2 --yarn-beta-fast 16 "
        "-sm row -ts 3,1 -mg 1 -ot exps=CPU,attn=CPU -ncmoe 2 --n-cpu-ffn 1 -nkvo "
        "--override-kv a.b=int:5,c=bool:true --override-kv d=float:0.5 --override-kv e=str:x:y"
    )
    assert cli("serve", "-m", model, *line.split()).code == 7
    engine = served[0].engine
    assert engine.rope == RopeConfig("yarn", 1e6, 0.25, 4096, 1, 0.5, 2, 16)
    placed = engine.placement
    assert (placed.split_mode, placed.tensor_split, placed.main_gpu) == ("row", (3, 1), 1)
    assert not placed.kv_offload
    assert placed.tensors[:2] == (("exps", "CPU"), ("attn", "CPU"))
    assert [name.split(r"\.ffn")[0] for name, _ in placed.tensors[2:]] == [
        r"blk\.0", r"blk\.1", r"blk\.0",
    ]  # fmt: skip
    assert engine.overrides == (
        ("a.b", "int", 5), ("c", "bool", True), ("d", "float", 0.5), ("e", "str", "x:y"),
    )  # fmt: skip
    assert cli("serve", "-m", model, "--cpu-moe", "--rope-freq-scale", "0.5").code == 7
    assert served[1].engine.rope == RopeConfig(freq_scale=0.5)
    assert len(served[1].engine.placement.tensors) == 1


@pytest.mark.parametrize(
    ("words", "modes"),
    [
        ("--mlock", (True, True, False)),
        ("--mlock --no-mmap", (False, True, False)),
        ("--load-mode mmap+mlock --no-mmap", (True, True, False)),
        ("-lm none", (False, False, False)),
        ("-lm dio", (False, False, True)),
        ("-lm auto --no-mmap", (False, False, False)),
    ],
)
def test_how_the_model_is_read(
    cli: Any, model: str, served: list[Settings], words: str, modes: tuple[bool, bool, bool]
) -> None:
    assert cli("serve", "-m", model, *words.split()).code == 7
    engine = served[0].engine
    assert (engine.mmap, engine.mlock, engine.direct_io) == modes


def test_templates(cli: Any, model: str, served: list[Settings], tmp_path: Path) -> None:
    file = tmp_path / "t.jinja"
    file.write_text("{{ messages }}é")
    words = ["--chat-template-file", str(file), "--chat-template-kwargs", '{"a": [1]}']
    assert cli("serve", "-m", model, *words).code == 7
    assert served[0].engine.chat_template == "{{ messages }}é"
    assert served[0].serve.defaults.template_variables == {"a": [1]}


def test_variables(
    cli: Any, model: str, served: list[Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_ARG_ROPE_FREQ_BASE", "5")
    monkeypatch.setenv("LLAMA_ARG_KV_OFFLOAD", "0")
    monkeypatch.setenv("LLAMA_ARG_MLOCK", "1")
    monkeypatch.setenv("LLAMA_ARG_TOP_K", "3")
    monkeypatch.setenv("LLAMA_ARG_REPEAT_PENALTY", "1.5")
    assert cli("serve", "-m", model, "--repeat-penalty", "2").code == 7
    assert served[0].engine.rope.freq_base == 5
    assert not served[0].engine.placement.kv_offload
    assert served[0].engine.mlock
    assert served[0].serve.defaults.top_k == 3
    assert served[0].serve.defaults.repeat_penalty == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--typical-p 0", "--typical-p: 0 leaves no token"),
        ("--samplers top_k;best", "--samplers: 'best' is none"),
        ("--sampling-seq kq", "--samplers: 'q' is none"),
        ("--samplers top_k --sampling-seq k", "give one of them"),
        ("-l 5", "--logit-bias: '5' is not ID+BIAS"),
        ("-l x+1", "--logit-bias: 'x+1' is not"),
        ("--grammar root", "--grammar, line 1: ::= should follow"),
        ("-j 5", "--json-schema: a JSON object is wanted"),
        ("-j {", "--json-schema: that is no JSON"),
        ("-j {} --grammar root::=.", "give one of them"),
        ("--grammar-file /none/x", "--grammar-file: /none/x: No such file"),
        ("--grammar-file /dev/zero", "larger than 1 MiB"),
        ("--chat-template chatml --chat-template-file x", "give one of them"),
        ("--chat-template-kwargs []", "--chat-template-kwargs: a JSON object is wanted"),
        ("--rope-scale 2 --rope-freq-scale 0.5", "say the same"),
        ("--rope-scale 0", "--rope-scale: write more than 0"),
        ("-ts 3,x", "--tensor-split: '3,x' are no shares"),
        ("-ts -1", "are no shares"),
        ("-ot exps", "--override-tensor: 'exps' is not REGEX=TYPE"),
        ("--override-kv a=5", "--override-kv: 'a=5' is not KEY=TYPE:VALUE"),
        ("--override-kv a=int:x", "'a=int:x' is not"),
        ("--override-kv a=int:99999999999999999999", "is not KEY=TYPE:VALUE"),
        ("--override-kv a=bool:yes", "is not KEY=TYPE:VALUE"),
        ("--override-kv a=word:x", "types are int, float, bool, str"),
        ("--hf-file x", "--hf-file needs --hf-repo"),
        ("-hf a/b", "--model and --hf-repo: give one of them"),
    ],
)
def test_what_can_not_be_meant_is_said(
    cli: Any, model: str, served: list[Settings], words: str, says: str
) -> None:
    ended = cli("serve", "-m", model, *words.split())
    assert ended.code == 2, ended.err
    assert says in ended.err
    assert not served


def test_a_grammar_that_is_no_text(cli: Any, model: str, tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(b"\xff")
    ended = cli("serve", "-m", model, "--grammar-file", str(file))
    assert (ended.code, "is no text" in ended.err) == (2, True)


def test_no_model(cli: Any, served: list[Settings]) -> None:
    ended = cli("serve")
    assert ended.code == 2
    assert "which model? Give -m FILE, or -hf USER/REPO" in ended.err


@pytest.mark.parametrize(
    ("words", "level"),
    [
        ("-v", "debug"),
        ("-lv 0", "error"),
        ("-lv 2", "warning"),
        ("--log-verbosity 3", "info"),
        ("--verbosity=9", "debug"),
        ("--log-level warning", "warning"),
    ],
)
def test_what_is_logged(
    cli: Any,
    model: str,
    served: list[Settings],
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    level: str,
) -> None:
    seen = []
    plain = server_log.log_to_stderr

    def log_to_stderr(wanted: Any, *more: Any, **rest: Any) -> Any:
        seen.append(wanted)
        return plain(wanted, *more, **rest)

    monkeypatch.setattr(server_log, "log_to_stderr", log_to_stderr)
    assert cli("serve", "-m", model, *words.split()).code == 7
    assert seen == [level]


def test_names_do_not_clash() -> None:
    assert not set(MORE) & {"model", "temp", "seed", "host", "lora"}
