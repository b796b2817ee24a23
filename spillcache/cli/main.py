"""The command line's front door: commands, and how errors leave it.

Only what is quick to import is imported here; a command imports what it needs when it runs.
"""

import io
import os
import sys
from typing import Annotated, Any, Never

import typer

from spillcache import __version__
from spillcache.cli.bench_restart import bench_restart
from spillcache.cli.command import BenchCommand, Command, Group, ServeCommand
from spillcache.cli.doctor_command import doctor
from spillcache.cli.gc_command import gc
from spillcache.cli.invalidate_command import invalidate
from spillcache.cli.ls_command import ls
from spillcache.cli.purge_command import purge
from spillcache.cli.serve_command import serve
from spillcache.cli.status_command import status
from spillcache.cli.verify_command import repair, verify
from spillcache.errors import ConfigError, SpillcacheError

DEBUG_VARIABLE = "SPILLCACHE_DEBUG"
"""Set it to 1 to see tracebacks."""

EXIT_ERROR, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130

_UsageError: type[Any] = typer.BadParameter.__bases__[0]  # has no public name in typer

_HELP = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(
    name="spillcache",
    cls=Group,
    help="The prompt cache of local LLM engines, kept on disk across restarts.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings=_HELP,
)
bench_app = typer.Typer(cls=Group, help="Measure on this machine.", context_settings=_HELP)
app.add_typer(bench_app, name="bench")
app.command("serve", cls=ServeCommand)(serve)
app.command("ls", cls=Command)(ls)
app.command("status", cls=Command)(status)
app.command("doctor", cls=Command)(doctor)
app.command("verify", cls=Command)(verify)
app.command("repair", cls=Command)(repair)
app.command("gc", cls=Command)(gc)
app.command("purge", cls=Command)(purge)
app.command("invalidate", cls=Command)(invalidate)
bench_app.command("restart", cls=BenchCommand)(bench_restart)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"spillcache {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001 — its callback acts
        bool,
        typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version."),
    ] = False,
) -> None:
    """The prompt cache of local LLM engines, kept on disk across restarts."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@bench_app.callback(invoke_without_command=True)
def bench(context: typer.Context) -> None:
    """Measure on this machine."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def run() -> Never:
    """Run the command line of ``sys.argv`` and exit: 0; 1 for errors; 2 for flags; 130 after ^C
    (but a server that was told to stop, and did, exits with 0).

    Errors are one line on stderr. No traceback, unless ``SPILLCACHE_DEBUG=1``.
    """
    for stream in (sys.stdout, sys.stderr):
        # Names of files may be any bytes, and a terminal may know few characters.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = app(prog_name="spillcache", standalone_mode=False) or 0
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        code = EXIT_INTERRUPTED
    except BrokenPipeError:
        _quiet_stdout()  # the reader went away (``| head``)
        code = EXIT_ERROR
    except Exception as error:  # the last line of defence against tracebacks
        if os.environ.get(DEBUG_VARIABLE) == "1":
            raise
        code = _report(error)
    sys.exit(code)


def _report(error: Exception) -> int:
    if isinstance(error, _UsageError):
        text, code = error.format_message(), EXIT_USAGE
    elif isinstance(error, SpillcacheError):
        text, code = str(error), EXIT_USAGE if isinstance(error, ConfigError) else EXIT_ERROR
    else:
        what = " ".join(str(error).split()) or "no details"
        text = f"{type(error).__name__}: {what} (set {DEBUG_VARIABLE}=1 for the traceback)"
        code = EXIT_ERROR
    print(f"spillcache: error: {' '.join(text.split())}", file=sys.stderr)
    return code


def _quiet_stdout() -> None:
    """Let the flush at exit go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
