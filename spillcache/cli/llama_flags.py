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
    --cache-idle-slots --no-cache-idle-slots --cache-prompt --check-tensors --cont-batching -cb
    --no-cont-batching -nocb --escape -e --no-escape --jinja --no-jinja --kv-unified -kvu
    --no-kv-unified -no-kvu --log-disable --log-prefix --no-log-prefix --log-timestamps
    --no-log-timestamps --metrics --mmap --mmproj-auto --mmproj-offload --no-mmproj-offload
    --no-context-shift --no-mmproj --no-mmproj-auto --no-perf --perf --no-repack -nr --repack
    --no-slots --slots --no-warmup --warmup --no-webui --webui --no-ui --ui --no-ui-mcp-proxy
    --no-webui-mcp-proxy --props --verbose-prompt --no-log-jsonl --no-agent -no-ag
    --no-skip-chat-parsing --no-prefill-assistant --no-spec-draft-backend-sampling
    """.split()  # noqa: SIM905 — a list of words reads better
)
"""Flags without a value that change no answer here."""

IGNORED_VALUES = frozenset(
    """
    --batch-size -b --cache-reuse --cpu-mask -C --cpu-mask-batch -Cb --cpu-range -Cr
    --cpu-range-batch -Crb --cpu-strict --cpu-strict-batch --ctx-checkpoints -ctxcp
    --swa-checkpoints --checkpoint-min-step -cms --defrag-thold -dt --keep --log-colors --log-file
    --numa --poll --poll-batch --prio --prio-batch --slot-prompt-similarity -sps
    --sleep-idle-seconds --sse-ping-interval --tags --threads-batch -tb --threads-http
    --embd-normalize --image-min-tokens --image-max-tokens --mtmd-batch-max-tokens --video-fps
    --video-timestamp-interval --video-ffmpeg-dir --lazy-mode -lzm
    """.split()  # noqa: SIM905
)
"""Flags with a value that change no answer here."""

_REFUSED_BY_REASON: Mapping[str, str] = {
    "models are files or come with -hf: give one of these": """
        -hfv -hfrv --hf-repo-v -hffv --hf-file-v -mu --model-url -dr --docker-repo -cl --cache-list
        --embd-gemma-default --fim-qwen-1.5b-default --fim-qwen-3b-default --fim-qwen-7b-default
        --fim-qwen-7b-spec --fim-qwen-14b-spec --fim-qwen-30b-default --gpt-oss-20b-default
        --gpt-oss-120b-default --vision-gemma-4b-default --vision-gemma-12b-default""",
    "one model is served": """
        --models-dir --models-max --models-preset --models-autoload --no-models-autoload""",
    "only text is served: no images, no sound": """
        -mm --mmproj -mmu --mmproj-url -mv --model-vocoder -mmdev --mmproj-device --media-path""",
    "there is no speculative decoding": """
        -md --model-draft --draft --draft-n --draft-max --draft-min --draft-n-min --draft-p-min
        --draft-p-split -cd --ctx-size-draft -ngld --gpu-layers-draft --n-gpu-layers-draft -devd
        --device-draft -ctkd --cache-type-k-draft -ctvd --cache-type-v-draft -td --threads-draft
        -tbd --threads-batch-draft -hfd -hfrd --hf-repo-draft --spec-replace -Cd --cpu-mask-draft
        -Crd --cpu-range-draft --cpu-strict-draft --prio-draft --poll-draft -Cbd
        --cpu-mask-batch-draft --cpu-strict-batch-draft --prio-batch-draft --poll-batch-draft -otd
        --override-tensor-draft -cmoed --cpu-moe-draft -ncmoed --n-cpu-moe-draft -lcs
        --lookup-cache-static -lcd --lookup-cache-dynamic --spec-default --spec-type
        --spec-draft-backend-sampling --spec-draft-cpu-mask --spec-draft-cpu-mask-batch
        --spec-draft-cpu-moe --spec-draft-cpu-range --spec-draft-cpu-strict
        --spec-draft-cpu-strict-batch --spec-draft-device --spec-draft-hf --spec-draft-model
        --spec-draft-n-cpu-moe --spec-draft-n-max --spec-draft-n-min --spec-draft-ncmoe
        --spec-draft-ngl --spec-draft-override-tensor --spec-draft-p-min --spec-draft-p-split
        --spec-draft-poll --spec-draft-poll-batch --spec-draft-prio --spec-draft-prio-batch
        --spec-draft-sampling --spec-draft-threads --spec-draft-threads-batch --spec-draft-type-k
        --spec-draft-type-v --spec-ngram-map-k-min-hits --spec-ngram-map-k-size-m
        --spec-ngram-map-k-size-n --spec-ngram-map-k4v-min-hits --spec-ngram-map-k4v-size-m
        --spec-ngram-map-k4v-size-n --spec-ngram-min-hits --spec-ngram-mod-n-match
        --spec-ngram-mod-n-max --spec-ngram-mod-n-min --spec-ngram-simple-min-hits
        --spec-ngram-simple-size-m --spec-ngram-simple-size-n --spec-ngram-size-m
        --spec-ngram-size-n --spec-synth-len --spec-synth-rates""",
    "control vectors are not supported": """
        --control-vector --control-vector-scaled --control-vector-layer-range""",
    "the library chooses devices and what fits; -ngl, -sm, -ts and -ot are offered": """
        -dev --device --list-devices -fit --fit -fitt --fit-target -fitc --fit-ctx --op-offload
        --no-op-offload --no-host --rpc --moe-cache-mib""",
    "that way of sampling is not offered": """
        --backend-sampling -bs --adaptive-target --adaptive-decay""",
    "requests say where to stop (docs/api.md)": "-r --reverse-prompt",
    "thoughts come as reasoning_content and are not bounded; --chat-template-kwargs says more": """
        --reasoning-format --reasoning-budget --reasoning-budget-message --reasoning -rea
        --reasoning-effort --reasoning-preserve --no-reasoning-preserve""",
    "an answer that is begun is not gone on from": "--prefill-assistant",
    "tools and thoughts are always read out of chats' answers": "--skip-chat-parsing",
    "reranking is not served": "--reranking --rerank",
    "infill is in the order of the model's own training": "--spm-infill",
    "control tokens are not shown in answers": "--special -sp",
    "the server runs no tools; those of requests work without it": """
        --tools --tools-runtime --mcp-servers-config --mcp-servers-json --agent -ag --ui-mcp-proxy
        --webui-mcp-proxy""",
    "put a proxy before the server for that": """
        --path --api-prefix --webui-config --webui-config-file
        --ui-config --ui-config-file --cors-origins --cors-methods --cors-headers
        --cors-credentials --no-cors-credentials --reuse-port""",
    "prompts are never written to logs": "--log-prompts-dir",
    "give --log-format json": "--log-jsonl",
    "there is none": "--completion-bash",
    'requests say that themselves: "cache_prompt": false': "--no-cache-prompt",
    "an answer ends where the context does": "--context-shift",
    "all slots share -c": "--kv-unified-per-slot",
    "the cache needs all cells that it was told of": "--grp-attn-n -gan --grp-attn-w -gaw",
}

_HARMLESS: Mapping[str, frozenset[str]] = {
    "--reasoning-format": frozenset({"auto", "deepseek"}),
    "--reasoning-budget": frozenset({"-1"}),
    "--reasoning": frozenset({"auto"}),
    "-rea": frozenset({"auto"}),
}
"""Values of refused flags that ask for what is so here anyway: ignored."""

REFUSED: Mapping[str, str] = {
    flag: reason for reason, flags in _REFUSED_BY_REASON.items() for flag in flags.split()
}
"""Flag → why not."""


def is_harmless(flag: str, value: str) -> bool:
    """Whether a refused flag's value asks for what is so here anyway."""
    return value in _HARMLESS.get(flag, ())
