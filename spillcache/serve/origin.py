"""Which web pages may have a browser change things here. Pure functions."""

from collections.abc import Collection


def is_own(origin: str | None, host: str, trusted: Collection[str] = ()) -> bool:
    """Whether a request with this ``Origin`` header comes from no page, from one of this server's,
    whose name the request's ``host`` header has, or from one of a ``trusted`` origin.
    """
    if origin is None:
        return True
    if origin in trusted or "*" in trusted:
        return True
    scheme, separator, name = origin.partition("://")
    return bool(separator) and scheme in ("http", "https") and _same(name, host, scheme)


def _same(name: str, host: str, scheme: str) -> bool:
    port = ":80" if scheme == "http" else ":443"
    wanted = host.lower().removesuffix(port)
    return bool(wanted) and name.lower().removesuffix(port) == wanted
