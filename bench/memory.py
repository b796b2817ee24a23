"""Does a server's memory stay bounded while many different prompts pass through it?

Sends different prompts of one length through a real server, samples its resident size, and compares
the highest with a bound: model + KV + --cache-ram + 400 MiB. The last line of stdout is JSON.
Linux: reads /proc.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from process import ResidentSize

from spillcache.cli.bench_prompts import PromptMaker
from spillcache.cli.bench_server import BenchServer
from spillcache.cli.model_path import find_model
from spillcache.config import MIB, format_size
from spillcache.errors import SpillcacheError

OVERHEAD_BYTES = 400 * MIB


def main() -> int:
    args = arguments()
    model = find_model(args.model)
    context = args.prompt_tokens + 512
    with tempfile.TemporaryDirectory(prefix="spillcache-bench-") as work:
        flags = ["--model", str(model), "--ctx-size", str(context)]
        flags += ["--cache-ram", str(args.cache_ram), "--cache-disk", str(Path(work) / "cache")]
        with BenchServer(flags, Path(work) / "server.log") as server:
            size = ResidentSize(server.pid)
            loaded_bytes = size.now_bytes()
            maker = PromptMaker(server.client.tokenize)
            for number in range(args.prompts):
                server.client.complete(maker.prompt(args.prompt_tokens), 1)
                print(
                    f"{number + 1} of {args.prompts} prompts: {format_size(size.max_bytes)}",
                    file=sys.stderr,
                    flush=True,
                )
            server.stop()
            size.stop()
    model_bytes = model.stat().st_size
    kv_bytes = args.kv_bytes or demo_kv_bytes(context)
    bound_bytes = model_bytes + kv_bytes + args.cache_ram * MIB + OVERHEAD_BYTES
    ok = 0 < size.max_bytes <= bound_bytes
    print(f"resident at most {format_size(size.max_bytes)}, bound {format_size(bound_bytes)}")
    report = {
        "bench": "memory",
        "rss_max_bytes": size.max_bytes,
        "bound_bytes": bound_bytes,
        "ok": ok,
        "rss_loaded_bytes": loaded_bytes,
        "model_bytes": model_bytes,
        "kv_bytes": kv_bytes,
        "cache_ram_bytes": args.cache_ram * MIB,
        "prompts": args.prompts,
        "prompt_tokens": args.prompt_tokens,
        "model": model.name,
    }
    print(json.dumps(report))
    return 0 if ok else 1


def demo_kv_bytes(context_tokens: int) -> int:
    """gemma3-270m at f16: of 18 layers with one K and V head of 256, 15 keep only their window.

    llama.cpp gives those window + ubatch cells.
    """
    layer_bytes = 2 * 256 * 2
    return layer_bytes * (3 * context_tokens + 15 * min(context_tokens, 512 + 512))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", default="gemma3-270m")
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--prompt-tokens", type=int, default=4000)
    parser.add_argument(
        "--cache-ram", type=int, default=256, help="MiB; less than all prompts take"
    )
    parser.add_argument("--kv-bytes", type=int, help="KV cache; needed for other models")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SpillcacheError as error:
        sys.exit(f"bench/memory.py: error: {error}")
