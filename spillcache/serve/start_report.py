"""What the server says about itself once the model is loaded."""

import logging
from collections.abc import Mapping
from typing import Any

from spillcache.config import StoreConfig, format_size
from spillcache.engine.base import Engine
from spillcache.engine.chat_template import BUILTIN
from spillcache.errors import StoreError
from spillcache.serve.door import Door
from spillcache.store.block_store import BlockStore, Usage

log = logging.getLogger("spillcache.serve")


def log_start(service: Door) -> None:
    """The model, what fits, where the cache is, and what is not as one may think.

    Looks at the cache's directory, so not on the event loop. Raises NotReady if the service stops
    meanwhile.
    """
    engine, store = service.engine, service.settings.store
    usage = None if store is None else _usage(store)
    cache: Mapping[str, Any] = service.health().get("cache") or {}  # type: ignore[assignment]
    slots = service.slots_total()
    log.info(
        "%s (%s): context %s tokens, %d slot%s; %s; %s",
        engine.info.description,
        format_size(engine.info.size_bytes),
        f"{engine.limits.context_tokens:,}",
        slots,
        "" if slots == 1 else "s",
        _disk(store, usage, cache.get("disk") or {}),
        _self_test(cache.get("self_test")),
    )
    if usage is not None:
        _warn_if_too_large(usage)
    if service.settings.engine.chat_template is None:
        _warn_if_no_template(engine)


def _usage(store: StoreConfig) -> Usage | None:
    try:
        return BlockStore.inspect(store.path, store.min_free_bytes).usage()
    except StoreError as error:
        log.warning("the cache on disk can't be looked at: %s", error)
        return None


def _disk(store: StoreConfig | None, usage: Usage | None, health: Mapping[str, Any]) -> str:
    if store is None:
        return "no disk cache"
    text = f"disk cache {store.path}"
    if usage is not None:
        used, quota = format_size(usage.allocated_bytes), format_size(usage.quota_bytes)
        text += f", {used} of {quota} used"
    if not health.get("on"):
        text += f", off for now: {health.get('reason') or 'not open'}"
    return text


def _self_test(verdict: Mapping[str, Any] | None) -> str:
    if verdict is None:
        return "no self-test"
    return f"self-test {'passed' if verdict['passed'] else 'FAILED'}: {verdict['detail']}"


def _warn_if_too_large(usage: Usage) -> None:
    room = usage.allocated_bytes + usage.free_bytes
    if usage.quota_bytes > room:
        log.warning(
            "--cache-disk-size is %s, but the filesystem has %s free and the cache uses %s: "
            "it will hold less, for %s stay free",
            format_size(usage.quota_bytes),
            format_size(usage.free_bytes),
            format_size(usage.allocated_bytes),
            format_size(usage.min_free),
        )


def _warn_if_no_template(engine: Engine) -> None:
    if engine.info.chat_template in BUILTIN:
        log.warning(
            "the model has no chat template; the built-in %s is used, and answers to chats may be "
            "poor (--chat-template names another)",
            engine.info.chat_template,
        )
