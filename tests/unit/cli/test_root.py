"""The root of the command line: commands load lazily, and every failure is one sentence and an exit status."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from draco import __version__, cli
from draco.resources.errors import DracoError

ProvokeCommand = Callable[[Callable[[], object]], None]


@pytest.fixture
def provoke(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ProvokeCommand:
    """Make `draco status` call the test's function, with the state folder in a temporary place."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("DRACO_DEBUG", raising=False)

    def use(action: Callable[[], object]) -> None:
        command = click.Command("status", callback=action)
        monkeypatch.setattr(cli.LazyGroup, "get_command", lambda *_: command)

    return use


def raises(error: BaseException) -> Callable[[], None]:
    def action() -> None:
        raise error

    return action


def test_help_and_version_import_no_command_and_none_of_its_libraries() -> None:
    heavy = "{'aiohttp', 'grpc', 'kopf', 'kubernetes_asyncio', 'rich', 'pynvml', 'cryptography', 'yaml', 'msgspec'}"
    program = (
        "import sys; from draco.cli import run; status = run([sys.argv[1]]);"
        f"extra = {heavy} & set(sys.modules) | {{m for m in sys.modules if m.startswith('draco.cli.')}};"
        "sys.exit(f'imported: {extra}' if extra else status)"
    )
    for option in ("--help", "--version"):
        done = subprocess.run([sys.executable, "-c", program, option], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_help_lists_every_command_and_every_command_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--help"]) == 0
    shown = capsys.readouterr().out
    assert cli.all_commands().keys() - cli.COMMANDS.keys() == {"cluster", "demo"}
    for name in cli.all_commands():
        assert f"  {name} " in shown
        assert cli.run([name, "--help"]) == 0


def test_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out == f"draco {__version__}\n"


def test_an_unknown_command_is_a_usage_error_with_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["stauts"]) == 2
    assert "No such command 'stauts'. Did you mean 'status'?" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["cluster", "demo"])
def test_a_command_of_a_package_that_is_not_installed_says_which_it_is(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "all_commands", lambda: cli.COMMANDS)
    assert cli.run([name, "up"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"`draco {name}` is in the package draco-local, which is not installed here. In a checkout of Draco" in said
    assert "`make setup` installs it" in said


def test_a_plugin_of_kubectl_calls_itself_so_in_usage_lines(capsys: pytest.CaptureFixture[str]) -> None:
    plugin = Path(sys.executable).with_name("kubectl-draco")
    done = subprocess.run([plugin, "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: kubectl draco ")


def test_completion_of_a_command_s_name_imports_nothing() -> None:
    environment = os.environ | {"_DRACO_COMPLETE": "bash_complete", "COMP_WORDS": "draco st", "COMP_CWORD": "1"}
    script = "import sys, draco.cli as cli; cli.root.main(prog_name='draco')"
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert "plain,status" in done.stdout
    assert "draco.cli.status.command" not in done.stderr


def test_an_error_that_a_person_caused_is_its_sentence(
    provoke: ProvokeCommand, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    provoke(raises(DracoError("No cluster is called lab: run `draco cluster list`.")))
    assert cli.run(["status"]) == 1
    assert capsys.readouterr().err == "Error: No cluster is called lab: run `draco cluster list`.\n"
    assert not list(tmp_path.rglob("*.log"))


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("no kubeconfig at /x", "No kubeconfig at /x."),
        ("gpu-node-0 is not ready.", "gpu-node-0 is not ready."),
        ("/etc is a folder", "/etc is a folder."),
        ("Which one?", "Which one?"),
    ],
)
@pytest.mark.parametrize("kind", [DracoError, click.ClickException])
def test_whatever_a_layer_writes_is_told_as_a_sentence(
    provoke: ProvokeCommand,
    capsys: pytest.CaptureFixture[str],
    kind: Callable[[str], Exception],
    message: str,
    told: str,
) -> None:
    provoke(raises(kind(message)))
    assert cli.run(["status"]) == 1
    assert capsys.readouterr().err == f"Error: {told}\n"


def test_errors_from_concurrent_tasks_are_told_once_each(
    provoke: ProvokeCommand, capsys: pytest.CaptureFixture[str]
) -> None:
    inner = ExceptionGroup("tasks", [DracoError("One."), DracoError("Two."), DracoError("One.")])
    provoke(raises(ExceptionGroup("outer", [inner])))
    assert cli.run(["status"]) == 1
    assert capsys.readouterr().err == "Error: One.\nError: Two.\n"


def test_a_file_that_cannot_be_used_is_named(provoke: ProvokeCommand, capsys: pytest.CaptureFixture[str]) -> None:
    provoke(lambda: Path("/nowhere/kubeconfig").read_text(encoding="utf-8"))
    assert cli.run(["status"]) == 1
    assert capsys.readouterr().err == "Error: /nowhere/kubeconfig: no such file or directory.\n"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_is_full_is_no_defect(
    provoke: ProvokeCommand, capsys: pytest.CaptureFixture[str], tmp_path: Path, number: int
) -> None:
    provoke(raises(OSError(number, os.strerror(number))))
    assert cli.run(["status"]) == 1
    assert capsys.readouterr().err.startswith("Error: Not everything could be written: ")
    assert not list(tmp_path.rglob("*.log"))


def test_a_defect_is_one_sentence_and_its_traceback_is_in_a_file(
    provoke: ProvokeCommand, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    provoke(raises(KeyError("uuid")))
    assert cli.run(["status"]) == 1
    (log,) = tmp_path.rglob("*.log")
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "KeyError: 'uuid'" in told
    assert str(log) in told
    assert "Traceback (most recent call last)" in log.read_text(encoding="utf-8")


def test_a_defect_with_a_full_disk_is_still_one_sentence(
    provoke: ProvokeCommand, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    provoke(raises(KeyError("uuid")))

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    assert cli.run(["status"]) == 1
    assert "DRACO_DEBUG=1" in capsys.readouterr().err


def test_a_defect_where_nobody_has_a_home_is_still_one_sentence(
    provoke: ProvokeCommand, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    provoke(raises(KeyError("uuid")))
    monkeypatch.delenv("XDG_STATE_HOME")

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert cli.run(["status"]) == 1
    assert "DRACO_DEBUG=1" in capsys.readouterr().err


def test_debug_shows_the_traceback(
    provoke: ProvokeCommand, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRACO_DEBUG", "1")
    provoke(raises(KeyError("uuid")))
    assert cli.run(["status"]) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), BaseExceptionGroup("tasks", [KeyboardInterrupt()])])
def test_an_interruption_ends_with_130(
    provoke: ProvokeCommand, capsys: pytest.CaptureFixture[str], interruption: BaseException
) -> None:
    provoke(raises(interruption))
    assert cli.run(["status"]) == 130
    assert capsys.readouterr().err.strip() == "Interrupted."


@pytest.mark.parametrize(("ending", "status"), [(SystemExit(), 0), (SystemExit(3), 3), (SystemExit("Stopped."), 1)])
def test_a_command_may_end_the_program_itself(provoke: ProvokeCommand, ending: SystemExit, status: int) -> None:
    provoke(raises(ending))
    assert cli.run(["status"]) == status


@pytest.mark.parametrize("length", [1, 1_000_000])
def test_a_reader_that_went_away_gets_no_complaint(length: int) -> None:
    program = (
        "import click; from draco import cli;"
        f"command = click.Command('status', callback=lambda: click.echo('x' * {length}, nl=False));"
        "cli.LazyGroup.get_command = lambda *_: command; cli.main(['status'])"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    writer.stdout.close()
    _, told = writer.communicate()
    assert (writer.returncode, told) == (1, "")


def test_without_a_standard_output_the_work_is_done_all_the_same() -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" -m draco --version >&-', sys.executable], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
