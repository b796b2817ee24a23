"""Prometheus metrics, prefix ``spillcache_``; a registry per object: tests can have several."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 5)
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Metrics:
    """All that is counted; ``docs/metrics.md`` lists it. prometheus-client locks: any thread."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        r = self.registry
        self.requests = Counter(
            "spillcache_requests", "Requests by outcome", ["outcome"], registry=r
        )
        self.prompt_tokens = Counter(
            "spillcache_prompt_tokens",
            "Prompt tokens by where their state came from: live, ram, disk or computed",
            ["source"],
            registry=r,
        )
        self.generated_tokens = Counter(
            "spillcache_generated_tokens", "Tokens generated", registry=r
        )
        self.ttft_seconds = Histogram(
            "spillcache_ttft_seconds",
            "From submission to the first token, by where the prompt's state came from",
            ["tier"],
            buckets=_SECONDS,
            registry=r,
        )
        self.inter_token_seconds = Histogram(
            "spillcache_inter_token_seconds",
            "From one token of an answer to the next",
            buckets=_TOKEN_SECONDS,
            registry=r,
        )
        self.restore_seconds = Histogram(
            "spillcache_restore_seconds",
            "From the begin of a restore to its end, by the slowest tier that it read",
            ["tier"],
            buckets=_SECONDS,
            registry=r,
        )
        self.spill_seconds = Histogram(
            "spillcache_spill_seconds",
            "Writing one group of blocks to disk, until it is durable or has failed",
            buckets=_SECONDS,
            registry=r,
        )
        self.active = Gauge("spillcache_requests_active", "Requests in a slot", registry=r)
        self.queued = Gauge("spillcache_requests_queued", "Requests waiting", registry=r)
        self.restored_blocks = Counter(
            "spillcache_restored_blocks", "Blocks imported into the engine", ["tier"], registry=r
        )
        self.restored_tokens = Counter(
            "spillcache_restored_tokens", "Tokens imported into the engine", ["tier"], registry=r
        )
        self.refused_tokens = Counter(
            "spillcache_refused_tokens",
            "Prompt tokens that a tier held and that were computed all the same",
            ["tier", "reason"],
            registry=r,
        )
        self.restored_bytes = Counter(
            "spillcache_restored_bytes", "Payload bytes imported", ["tier"], registry=r
        )
        self.decisions = Counter(
            "spillcache_cache_decisions",
            "Prompts by where their state was to come from, and why",
            ["decision"],
            registry=r,
        )
        self.spilled_blocks = Counter(
            "spillcache_spilled_blocks", "Blocks that reached the disk", registry=r
        )
        self.spilled_bytes = Counter(
            "spillcache_spilled_bytes", "Bytes of records written to disk", registry=r
        )
        self.unsaved_blocks = Gauge(
            "spillcache_unsaved_blocks", "Blocks in RAM that are not on disk yet", registry=r
        )
        self.disk_up = Gauge(
            "spillcache_disk_up", "1 while the disk tier is in use, 0 while it is not", registry=r
        )
        self.dropped_blocks = Counter(
            "spillcache_dropped_blocks",
            "Blocks that a tier could not keep, by reason",
            ["tier", "reason"],
            registry=r,
        )
        self.evicted_objects = Counter(
            "spillcache_evicted_objects", "Objects evicted, by tier", ["tier"], registry=r
        )
        self.condemned_blocks = Counter(
            "spillcache_condemned_blocks",
            "Blocks that failed in use and were deleted",
            registry=r,
        )
        self.corrupt_objects = Counter(
            "spillcache_corrupt_objects", "Objects quarantined", registry=r
        )
        self.ram_bytes = Gauge("spillcache_ram_bytes", "Payload bytes in the RAM tier", registry=r)
        self.disk_bytes = Gauge(
            "spillcache_disk_bytes", "Allocated bytes in the cache directory", registry=r
        )
        self.errors = Counter(
            "spillcache_errors",
            "Errors that were met and survived, by code",
            ["code"],
            registry=r,
        )

    def render(self) -> bytes:
        """The text exposition format, UTF-8."""
        return generate_latest(self.registry)
