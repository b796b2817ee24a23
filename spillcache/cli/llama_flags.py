"""llama-server's flags that are not ours: harmless ones are ignored, others refused with why."""

from collections.abc import Mapping

ALIASES: Mapping[str, str] = {
    "--gpu-layers": "--n-gpu-layers",
    "--predict": "--n-predict",
    "--temperature": "--temp",
}
"""Second long names of flags that are ours."""

IGNORED_SWITCHES = frozenset(
    """
    --cache-prompt --check-tensors --cont-batching -cb --no-cont-batching -nocb --escape -e
    --no-escape --jinja --no-jinja --kv-unified -kvu --no-kv-unified -no-kvu --log-disable
    --log-prefix --log-timestamps --metrics --mlock --mmap --no-context-shift --no-mmproj
    --no-mmproj-auto --no-perf --perf --no-repack -nr --repack --no-slots --slots --no-warmup
    --warmup --no-webui --webui --offline --props --verbose -v --log-verbose
    """.split()  # noqa: SIM905 — a list of words reads better
)
"""Flags without a value that change no answer here."""

IGNORED_VALUES = frozenset(
    """
    --batch-size -b --cache-reuse --cpu-mask -C --cpu-mask-batch -Cb --cpu-range -Cr
    --cpu-range-batch -Crb --cpu-strict --cpu-strict-batch --ctx-checkpoints --swa-checkpoints
    --defrag-thold -dt --log-colors --log-file --log-verbosity --verbosity -lv --numa --poll
    --poll-batch --prio --prio-batch --slot-prompt-similarity -sps --threads-batch -tb
    --threads-http --timeout -to
    """.split()  # noqa: SIM905
)
"""Flags with a value that change no answer here."""

_REFUSED_BY_REASON: Mapping[str, str] = {
    "models are files here: fetch it, and give its path to -m": """
        -hf -hfr --hf-repo -hff --hf-file -hft --hf-token -hfv -hfrv --hf-repo-v -hffv --hf-file-v
        -mu --model-url -dr --docker-repo --models-dir --models-max --models-preset
        --models-autoload --no-models-autoload""",
    "only text is served: no images, no sound": """
        -mm --mmproj -mmu --mmproj-url -mv --model-vocoder""",
    "there is no speculative decoding": """
        -md --model-draft --draft --draft-n --draft-max --draft-min --draft-n-min --draft-p-min
        -cd --ctx-size-draft -ngld --gpu-layers-draft --n-gpu-layers-draft -devd --device-draft
        -ctkd --cache-type-k-draft -ctvd --cache-type-v-draft -td --threads-draft -tbd
        --threads-batch-draft -hfd -hfrd --hf-repo-draft --spec-replace""",
    "control vectors are not supported": """
        --control-vector --control-vector-scaled --control-vector-layer-range""",
    "the model's own RoPE settings are used": """
        --rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx
        --yarn-ext-factor --yarn-attn-factor --yarn-beta-slow --yarn-beta-fast""",
    "the library places layers and tensors; only -ngl can be set": """
        -dev --device --list-devices -sm --split-mode -ts --tensor-split -mg --main-gpu
        -ot --override-tensor -cmoe --cpu-moe -ncmoe --n-cpu-moe -nkvo --no-kv-offload
        --kv-offload --override-kv -fit --fit -fitt --fit-target -fitc --fit-ctx --op-offload
        --no-op-offload --no-host""",
    "requests say that themselves (docs/api.md)": """
        --keep --repeat-last-n --repeat-penalty --presence-penalty --frequency-penalty
        --ignore-eos""",
    "that way of sampling is not offered": """
        --samplers --sampler-seq --sampling-seq --top-nsigma --top-n-sigma --typical --typical-p
        --xtc-probability --xtc-threshold --dry-multiplier --dry-base --dry-allowed-length
        --dry-penalty-last-n --dry-sequence-breaker --dynatemp-range --dynatemp-exp --mirostat
        --mirostat-lr --mirostat-ent --logit-bias -l --grammar --grammar-file --json-schema -j
        --json-schema-file -jf --backend-sampling -bs""",
    'give the template\'s text: --chat-template "$(cat FILE)"': "--chat-template-file",
    "reasoning is not taken apart, and templates get no arguments": """
        --chat-template-kwargs --reasoning-format --reasoning-budget --no-prefill-assistant
        --prefill-assistant""",
    "only completions are served": """
        --embedding --embeddings --reranking --rerank --pooling --spm-infill --special -sp
        --tools""",
    "put a proxy before the server for that": """
        --ssl-key-file --ssl-cert-file --path --api-prefix --webui-config --webui-config-file""",
    "give the key to --api-key, or in LLAMA_API_KEY": "--api-key-file",
    'requests say that themselves: "cache_prompt": false': "--no-cache-prompt",
    "an answer ends where the context does": "--context-shift",
    "the cache needs all cells that it was told of": "--grp-attn-n -gan --grp-attn-w -gaw",
}

REFUSED: Mapping[str, str] = {
    flag: reason for reason, flags in _REFUSED_BY_REASON.items() for flag in flags.split()
}
"""Flag → why not."""
