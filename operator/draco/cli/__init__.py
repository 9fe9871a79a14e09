"""The command line: `draco`, also installed as `kubectl draco`.

Owns the list of commands and the reporting of failures: `main` never lets a traceback out. A module holds its command as
`command` and is imported only when that command runs, so that `draco --help` and shell completion stay fast. Packages add
commands as entry points of the group `draco.commands`, each a mapping like `COMMANDS`. Must not do a command's work.
"""

import difflib
import errno
import functools
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Final

import click
from click.shell_completion import CompletionItem

from draco import __version__
from draco.resources.errors import DracoError, leaves
from draco.resources.texts import shown_lines

COMMANDS: Final = MappingProxyType(
    {
        "agent": ("draco.cli.agent", "Serve this node's GPUs to Kubernetes (runs on every GPU node)."),
        "autoscale": ("draco.cli.autoscale.command", "Tell autoscalers which devices new nodes will have."),
        "check": ("draco.cli.check", "Check that Draco is installed and working."),
        "explain": ("draco.cli.explain.command", "Explain why a claim or a pod waits for devices."),
        "health": ("draco.cli.health.command", "Show GPUs that have a fault, and what to do."),
        "layout": ("draco.cli.layout.command", "Show how GPUs are divided by MIG, and what a policy would change."),
        "lint": ("draco.cli.lint.command", "Check manifests before they reach a cluster, and correct them."),
        "maintain": ("draco.cli.maintain.command", "Take devices out of service, and bring them back."),
        "migrate": ("draco.cli.migrate.command", "Bring workloads and settings from other tools to Draco."),
        "mps": ("draco.cli.mps", "Keep the MPS control daemons that claims need (runs on every GPU node)."),
        "operator": ("draco.cli.operator", "Watch the whole cluster's GPUs and claims (runs in the cluster)."),
        "reserve": ("draco.cli.reserve.command", "Reserve devices for future pods, for a limited time."),
        "selector": ("draco.cli.selector.command", "Check device selectors, and try them on devices."),
        "simulate": ("draco.cli.simulate.command", "Show what would be allocated, without changing the cluster."),
        "status": (
            "draco.cli.status.command",
            "Show nodes, GPUs, claims, taints, maintenance and MIG policies on one screen.",
        ),
        "taint": ("draco.cli.taint.command", "List, preview, add and remove taints of single devices."),
        "top": ("draco.cli.top.command", "Show how much of the GPUs claims, pods and namespaces use."),
        "waste": ("draco.cli.waste.command", "Show GPU hours that namespaces hold and do not use, and their cost."),
        "withdraw": ("draco.cli.withdraw.command", "Remove what Draco has written, before it is uninstalled."),
    }
)
"""By command name: its module and its line in `draco --help`, kept here so that help imports no command."""

_OF_LOCAL: Final = frozenset({"cluster", "demo"})

EXIT_FAILED: Final = 1
EXIT_INTERRUPTED: Final = 128 + signal.SIGINT


@functools.cache
def all_commands() -> Mapping[str, tuple[str, str]]:
    """Draco's commands and those of installed packages, as in `COMMANDS`. Draco's take precedence."""
    import importlib.metadata  # noqa: PLC0415 - a tenth of a second, and most command lines name one of ours

    found: dict[str, tuple[str, str]] = {}
    for entry in importlib.metadata.entry_points(group="draco.commands"):
        found.update(entry.load())
    return found | COMMANDS


class LazyGroup(click.Group):
    """A click group that imports each command's module on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Command names in the order of the help text."""
        return sorted(all_commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; None if it does not exist."""
        found = COMMANDS.get(cmd_name) or all_commands().get(cmd_name)
        if found is None:
            return None
        command: click.Command = importlib.import_module(found[0]).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve the command; for an unknown name, the error suggests the nearest known one."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if args[0] in _OF_LOCAL:
                message = f"`draco {args[0]}` is in the package draco-local, which is not installed here."
                remedy = "In a checkout of Draco's repository, `make setup` installs it beside `draco`."
                raise click.UsageError(f"{message} {remedy}", ctx) from None
            near = difflib.get_close_matches(args[0], all_commands(), n=1)
            if not near:
                raise
            raise click.UsageError(f"{error.message} Did you mean '{near[0]}'?", ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, all_commands()[name][1]) for name in self.list_commands(ctx)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a command's name without importing it."""
        known = sorted(all_commands().items())
        names = [CompletionItem(name, help=text) for name, (_, text) in known if name.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="draco", message="%(prog)s %(version)s")
def root() -> None:
    """Operate GPUs under Kubernetes Dynamic Resource Allocation."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command line (by default this process's) and end the process with its exit status.

    0: done; 1: failed, with one sentence on standard error; 2: the command line itself was wrong; 130: interrupted.
    """
    sys.exit(run(sys.argv[1:] if arguments is None else list(arguments), program=_program_name(sys.argv[0])))


def run(arguments: Sequence[str], *, program: str = "draco") -> int:
    """Run one command line and return its exit status. `program` is its name in usage lines."""
    try:
        status = root.main(args=list(arguments), prog_name=program, standalone_mode=False)
        if sys.stdout is not None:  # as with `draco … >&-`
            sys.stdout.flush()
    except click.ClickException as error:
        if isinstance(error, click.UsageError):
            error.show()  # with the usage, and where help is
        else:
            _say(f"Error: {_whole(error.format_message())}")
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        _say("Interrupted.")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _discard_stdout()
        return EXIT_FAILED
    except SystemExit as ending:
        return _status_of(ending)
    except BaseException as error:  # noqa: BLE001 - outermost handler: every failure becomes one sentence
        return _report(error)
    return status if isinstance(status, int) else 0


def _report(error: BaseException) -> int:
    """Print why the command failed; a defect's traceback goes to a file, or to the screen if DRACO_DEBUG is set."""
    causes = list(leaves(error))
    if any(isinstance(cause, KeyboardInterrupt) for cause in causes):
        _say("Interrupted.")
        return EXIT_INTERRUPTED
    if os.environ.get("DRACO_DEBUG"):
        traceback.print_exception(error)
        return EXIT_FAILED
    sentences = [_sentence(cause) for cause in causes]
    if all(sentence is not None for sentence in sentences):
        for sentence in dict.fromkeys(sentences):
            _say(f"Error: {sentence}")
        return EXIT_FAILED
    defect = next(cause for cause, sentence in zip(causes, sentences, strict=True) if sentence is None)
    _say(f"Error: Draco has a bug ({_brief(defect)}); {_where_written(error)}")
    return EXIT_FAILED


def _sentence(error: BaseException) -> str | None:
    """The message for an error that the user or their machine caused; None for a defect of Draco."""
    match error:
        case DracoError():
            return _whole(str(error))
        case click.ClickException():
            return _whole(error.format_message())
        case OSError(strerror=str(reason), filename=str() | Path() as name):
            return f"{name}: {reason[:1].lower()}{reason[1:]}."
        case OSError(errno=errno.ENOSPC | errno.EDQUOT | errno.EFBIG, strerror=str(reason)):
            return f"Not everything could be written: {reason[:1].lower()}{reason[1:]}."
        case _:
            return None


def _whole(text: str) -> str:
    """The message with a capital letter and a full stop."""
    word = text.partition(" ")[0]
    # Names keep their case: gpu-node-0, /path, "quoted", kube-scheduler.
    began = f"{word.capitalize()}{text[len(word) :]}" if word.isalpha() and word.islower() else text
    return began if began.endswith((".", "!", "?", "…")) else f"{began}."


def _brief(error: BaseException) -> str:
    text = " ".join(str(error).split())
    kind = type(error).__name__
    return f"{kind}: {text[:200]}" if text else kind


def _where_written(error: BaseException) -> str:
    """Write the traceback to a file and return the sentence that names it; never fails."""
    text = "".join(traceback.format_exception(error))
    try:
        folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "draco" / "crashes"
        file = folder / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{os.getpid()}.log"
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(f"draco {__version__}: {' '.join(sys.argv)}\n{text}", encoding="utf-8", errors="replace")
    except (OSError, RuntimeError):  # RuntimeError: there is no home directory
        return "run it again with DRACO_DEBUG=1 to see the traceback."
    return f"the traceback is in {file}."


def _status_of(ending: SystemExit) -> int:
    if ending.code is None or isinstance(ending.code, int):
        return ending.code or 0
    _say(str(ending.code))
    return EXIT_FAILED


def _say(line: str) -> None:
    click.echo(shown_lines(line), err=True)


def _discard_stdout() -> None:
    """Redirect stdout to /dev/null after its reader has gone, so that the interpreter's flush at exit does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _program_name(invoked_as: str) -> str:
    """`kubectl draco` when started as kubectl's plugin, so that usage lines can be copied."""
    return "kubectl draco" if Path(invoked_as).name.startswith("kubectl-draco") else "draco"
