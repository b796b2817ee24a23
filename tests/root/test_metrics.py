from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from spillcache.metrics import Metrics


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = metrics.render().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_counts_come_out_as_prometheus_reads_them() -> None:
    metrics = Metrics()
    metrics.prompt_tokens.labels("disk").inc(8128)
    metrics.prompt_tokens.labels("computed").inc(64)
    metrics.ttft_seconds.labels("disk").observe(0.2)
    metrics.active.set(2)
    found = samples(metrics)
    assert found["spillcache_prompt_tokens_total", (("source", "disk"),)] == 8128
    assert found["spillcache_prompt_tokens_total", (("source", "computed"),)] == 64
    assert found["spillcache_ttft_seconds_count", (("tier", "disk"),)] == 1
    assert found["spillcache_ttft_seconds_bucket", (("le", "0.25"), ("tier", "disk"))] == 1
    assert found["spillcache_ttft_seconds_bucket", (("le", "0.1"), ("tier", "disk"))] == 0
    assert found["spillcache_requests_active", ()] == 2


def test_every_metric_has_the_prefix_and_help() -> None:
    families = list(text_string_to_metric_families(Metrics().render().decode()))
    assert families
    for family in families:
        assert family.name.startswith("spillcache_")
        assert family.documentation


def test_two_do_not_share_counts() -> None:
    one, other = Metrics(), Metrics()
    one.spilled_blocks.inc()
    assert samples(one)["spillcache_spilled_blocks_total", ()] == 1
    assert samples(other)["spillcache_spilled_blocks_total", ()] == 0
    assert isinstance(one.registry, CollectorRegistry)
    assert one.registry is not other.registry
