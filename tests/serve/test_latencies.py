"""What /metrics says of latencies, by tier, of the whole path."""

from pathlib import Path

from models import ModelShelf
from stack import Stack, prompt


def counts(stack: Stack, name: str) -> dict[str, float]:
    """How many were observed, by tier."""
    return {
        sample.labels.get("tier", ""): sample.value
        for family in stack.metrics.registry.collect()
        if family.name == name
        for sample in family.samples
        if sample.name == f"{name}_count" and sample.value
    }


def test_each_tier_has_its_own_times(gguf_model: ModelShelf, tmp_path: Path) -> None:
    with Stack(gguf_model("llama"), tmp_path / "d") as stack:
        stack.answer(prompt(300), 5)
        stack.answer(prompt(300), 1)
        stack.answer(prompt(300, seed=2), 1)
        stack.answer(prompt(300), 1)
        assert counts(stack, "spillcache_ttft_seconds") == {"computed": 2, "live": 1, "ram": 1}
        assert counts(stack, "spillcache_inter_token_seconds") == {"": 4}
        assert counts(stack, "spillcache_restore_seconds") == {"ram": 1}
        assert stack.cache is not None
        stack.cache.flush()
        assert counts(stack, "spillcache_spill_seconds")[""] >= 1
    with Stack(gguf_model("llama"), tmp_path / "d") as stack:
        stack.answer(prompt(300), 1)
        assert counts(stack, "spillcache_ttft_seconds") == {"disk": 1}
        assert counts(stack, "spillcache_restore_seconds") == {"disk": 1}
