"""The flags of ``spillcache serve`` that say who may ask, and how the server is run."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from spillcache.cli.config_file import use_config
from spillcache.config import Isolation
from spillcache.errors import ConfigError
from spillcache.serve.origin import is_host, is_origin

LogFormat = Literal["text", "json"]

_SERVER = "Server"
_CACHE = "Cache"

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        is_eager=True,
        callback=use_config,
        help="Flags by their long names, in TOML; the command line and variables win.",
        rich_help_panel=_SERVER,
    ),
]
ApiKey = Annotated[
    list[str] | None,
    typer.Option(
        "--api-key",
        envvar="LLAMA_API_KEY",
        metavar="KEY",
        help="Clients must send it as a bearer token; several: again, or with commas.",
        rich_help_panel=_SERVER,
    ),
]
ApiKeyFile = Annotated[
    Path | None,
    typer.Option(
        "--api-key-file",
        envvar="LLAMA_ARG_API_KEY_FILE",
        metavar="FILE",
        help="More keys, one a line.",
        rich_help_panel=_SERVER,
    ),
]
AllowedHosts = Annotated[
    list[str] | None,
    typer.Option(
        "--allowed-hosts",
        metavar="NAME",
        help="Names under which clients may ask, besides its own; *: any.",
        rich_help_panel=_SERVER,
    ),
]
AllowedOrigins = Annotated[
    list[str] | None,
    typer.Option(
        "--allowed-origins",
        metavar="ORIGIN",
        help="Sites whose pages may ask, as https://chat.example; *: any.",
        rich_help_panel=_SERVER,
    ),
]
SslKeyFile = Annotated[
    Path | None,
    typer.Option(
        "--ssl-key-file",
        envvar="LLAMA_ARG_SSL_KEY_FILE",
        metavar="FILE",
        help="HTTPS: the private key, in PEM.",
        rich_help_panel=_SERVER,
    ),
]
SslCertFile = Annotated[
    Path | None,
    typer.Option(
        "--ssl-cert-file",
        envvar="LLAMA_ARG_SSL_CERT_FILE",
        metavar="FILE",
        help="Its certificate, in PEM.",
        rich_help_panel=_SERVER,
    ),
]
QueueLimit = Annotated[
    int,
    typer.Option(
        "--queue-limit",
        metavar="N",
        min=1,
        help="Requests that may wait for a slot; others are told to come again.",
        rich_help_panel=_SERVER,
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        "-to",
        envvar="LLAMA_ARG_TIMEOUT",
        metavar="SECONDS",
        min=1,
        help="How long clients may take to send a request, and to read on.",
        rich_help_panel=_SERVER,
    ),
]
Format = Annotated[
    LogFormat,
    typer.Option(
        "--log-format",
        metavar="text|json",
        help="A line of text, or a JSON object, for each event.",
        rich_help_panel=_SERVER,
    ),
]
CacheIsolation = Annotated[
    Isolation,
    typer.Option(
        "--cache-isolation",
        metavar="BY",
        help="none, or api-key: clients with different keys share nothing.",
        rich_help_panel=_CACHE,
    ),
]


def hosts(words: list[str] | None) -> tuple[str, ...]:
    """Of ``--allowed-hosts``; raises ConfigError for what is no name and no address."""
    names = _split(words)
    for name in names:
        if not is_host(name):
            raise ConfigError(
                f"--allowed-hosts: {name!r} is no name or address; write for example llm.example"
            )
    return names


def origins(words: list[str] | None) -> tuple[str, ...]:
    """Of ``--allowed-origins``; raises ConfigError for what no browser would send."""
    sites = tuple(site.lower().removesuffix("/") for site in _split(words))
    for site in sites:
        if not is_origin(site):
            raise ConfigError(
                f"--allowed-origins: {site!r} is no origin; write for example https://chat.example"
            )
    return sites


def _split(words: list[str] | None) -> tuple[str, ...]:
    """Each word may hold several, with commas between."""
    parts = [part.strip() for word in words or () for part in word.split(",")]
    return tuple(part for part in parts if part)
