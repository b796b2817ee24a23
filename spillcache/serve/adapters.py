"""Which LoRA adapters a request runs with, and the namespace that its state belongs to."""

import math
from collections.abc import Iterable, Sequence
from typing import TypedDict

import numpy as np

from spillcache.engine.base import Adapter, AdapterScales
from spillcache.errors import RequestError
from spillcache.namespace import FieldValue, Namespace
from spillcache.serve.slots import Slot

SCALE_MAX = 1000.0
"""Far more than any adapter bears; float32 holds it."""
_NAMESPACES_MAX = 64

Asked = Iterable[tuple[int, float]]
"""Ids and scales, as a client wrote them."""


class ListedAdapter(TypedDict):
    """One of ``GET /lora-adapters``, as llama-server has it."""

    id: int
    path: str
    scale: float


class Adapters:
    """The server's adapters, and the choice for requests that make none. Any thread."""

    def __init__(self, known: Sequence[Adapter]) -> None:
        self._known = known
        self._default: AdapterScales = self.scales((a.id, a.scale) for a in known)

    def chosen(self, asked: Asked | None) -> AdapterScales:
        """What a request runs with: as it asks, else as the server is set. Raises RequestError."""
        return self._default if asked is None else self.scales(asked)

    def set_default(self, asked: Asked) -> None:
        """For requests that come from now on; adapters that are not named get 0. Raises
        RequestError.
        """
        self._default = self.scales(asked)

    def listed(self) -> list[ListedAdapter]:
        """All of them, with their scales for requests that say nothing."""
        now = dict(self._default)
        # The name only: the path is this machine's business.
        return [{"id": a.id, "path": a.name, "scale": now.get(a.id, 0.0)} for a in self._known]

    def scales(self, asked: Asked) -> AdapterScales:
        """Checked, in order, without those that change nothing. Raises RequestError."""
        found: dict[int, float] = {}
        for number, scale in asked:
            if not 0 <= number < len(self._known):
                raise RequestError(
                    f"lora: there is no adapter {number}; GET /lora-adapters lists them", "lora"
                )
            if number in found:
                raise RequestError(f"lora: adapter {number} is named twice", "lora")
            if not math.isfinite(scale) or abs(scale) > SCALE_MAX:
                raise RequestError(
                    f"lora: a scale must lie in {-SCALE_MAX:.0f} … {SCALE_MAX:.0f}", "lora"
                )
            found[number] = float(np.float32(scale))
        return tuple(sorted((number, scale) for number, scale in found.items() if scale))


class Namespaces:
    """One for each set of adapters, by their content and their scales: state is never shared
    across adapters, nor with those that had their names before. Engine's thread.
    """

    def __init__(self, base: Namespace, known: Sequence[Adapter]) -> None:
        """``base``: the model's alone."""
        self._known = known
        self._made: dict[AdapterScales, Namespace] = {(): base}

    def of(self, scales: AdapterScales) -> Namespace:
        """The namespace of requests that run with ``scales``."""
        namespace = self._made.get(scales)
        if namespace is None:
            if len(self._made) >= _NAMESPACES_MAX:  # a client may try any number of scales
                self._made = {(): self._made[()]}
            namespace = self._made[scales] = self._make(scales)
        return namespace

    def like(self, wanted: Namespace) -> Namespace:
        """Ours that is the same as ``wanted``, whichever adapters that takes; raises ValueError,
        with the field that differs, where there is none.
        """
        fields = dict(wanted.fields)
        by_digest = {adapter.digest: number for number, adapter in enumerate(self._known)}
        scales: dict[int, float] = {}
        for place in range(len(self._known)):
            digest, scale = fields.get(f"lora_{place}"), fields.get(f"lora_{place}_scale")
            if digest in by_digest and isinstance(scale, float) and digest is not None:
                scales[by_digest[digest]] = scale
        ours = self.of(tuple(sorted(scales.items())))
        if difference := ours.difference(wanted):
            raise ValueError(difference)
        return ours

    def has(self, namespace: Namespace) -> bool:
        """Whether ``of`` has made it; no longer for sure once it has made very many."""
        return namespace is self._made[()] or any(namespace is made for made in self._made.values())

    def _make(self, scales: AdapterScales) -> Namespace:
        fields: dict[str, FieldValue] = dict(self._made[()].fields)
        used = sorted((self._known[number].digest, scale) for number, scale in scales)
        for place, (digest, scale) in enumerate(used):
            fields[f"lora_{place}"], fields[f"lora_{place}_scale"] = digest, scale
        return Namespace.of(fields)


def by_adapters(slots: Iterable[Slot]) -> list[list[Slot]]:
    """Busy slots that may share a decode call: a call computes with one set of adapters."""
    groups: dict[AdapterScales, list[Slot]] = {}
    for slot in slots:
        if slot.job is not None:
            groups.setdefault(slot.job.adapters, []).append(slot)
    return list(groups.values())
