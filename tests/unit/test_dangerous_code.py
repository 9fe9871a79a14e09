"""No code does what untrusted input could exploit: no shell, no code from data, no TLS without verification."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = (ROOT / "operator" / "draco", ROOT / "local" / "draco_local", ROOT / "scripts")
MODULES = {
    "pickle": "objects from data run code",
    "marshal": "objects from data crash the interpreter",
    "shelve": "it is pickle",
    "dill": "it is pickle",
    "cloudpickle": "it is pickle",
    "jsonpickle": "objects from data run code",
    "multiprocessing": "it sends pickles",
    "xml.etree": "it expands entities without bound",
    "xml.dom": "it expands entities without bound",
    "xml.sax": "it expands entities without bound",
    "lxml": "it reads files that a document names",
}
HARMLESS = {"xml.sax.saxutils"}
CALLS = {
    "eval": "code from data",
    "exec": "code from data",
    "compile": "code from data",
    "__import__": "code from data",
    "os.system": "a shell",
    "os.popen": "a shell",
    "subprocess.getoutput": "a shell",
    "subprocess.getstatusoutput": "a shell",
    "asyncio.create_subprocess_shell": "a shell",
    "yaml.load": "objects from data: safe_load",
    "yaml.load_all": "objects from data: safe_load_all",
    "yaml.unsafe_load": "objects from data: safe_load",
    "yaml.full_load": "objects from data: safe_load",
    "tempfile.mktemp": "somebody else may make the file first",
    "ssl._create_unverified_context": "TLS with anybody",
}
NAMES = {
    "ssl.CERT_NONE": "TLS with anybody",
    "ssl.CERT_OPTIONAL": "TLS with anybody",
    "yaml.Loader": "objects from data",
    "yaml.CLoader": "objects from data",
    "yaml.UnsafeLoader": "objects from data",
    "yaml.FullLoader": "objects from data",
}
ARGUMENTS = {"shell": "a shell", "executable": "another program than the one named"}
SWITCHED_OFF = {"verify": "TLS with anybody", "check_hostname": "TLS with anybody", "verify_ssl": "TLS with anybody"}


def dangers(source: str) -> Iterator[tuple[int, str]]:
    """The line and the reason of each danger."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, why) for each in names if (why := _module(each.name)))
            case ast.ImportFrom(module=str(module), names=names, level=0):
                inner = [f"{module}.{each.name}" for each in names]
                if why := _module(module):
                    yield node.lineno, why
                yield from (
                    (node.lineno, why) for each in inner if (why := CALLS.get(each) or NAMES.get(each) or _module(each))
                )
            case ast.Attribute() if why := NAMES.get(ast.unparse(node)):
                yield node.lineno, why
            case ast.Call(func=function, keywords=keywords):
                if why := CALLS.get(ast.unparse(function)):
                    yield node.lineno, why
                for each in keywords:
                    if each.arg in ARGUMENTS:
                        yield node.lineno, ARGUMENTS[each.arg]
                    if each.arg in SWITCHED_OFF and _is_false(each.value):
                        yield node.lineno, SWITCHED_OFF[each.arg]
            case ast.Assign(targets=targets, value=value) if _is_false(value):
                switches = {
                    part
                    for each in targets
                    for name in ast.walk(each)
                    if isinstance(name, ast.Attribute)
                    for part in [name.attr]
                }
                yield from ((node.lineno, SWITCHED_OFF[each]) for each in switches & SWITCHED_OFF.keys())


def _module(name: str) -> str | None:
    if any(name == each or name.startswith(f"{each}.") for each in HARMLESS):
        return None
    return next((why for each, why in MODULES.items() if name == each or name.startswith(f"{each}.")), None)


def _is_false(value: ast.expr) -> bool:
    return any(isinstance(each, ast.Constant) and each.value is False for each in ast.walk(value))


def test_no_code_does_what_foreign_input_could_turn_against_it() -> None:
    files = [path for folder in FOLDERS for path in folder.rglob("*.py")]
    assert len(files) > 300
    found = [
        f"{path.relative_to(ROOT)}:{line}: {why}"
        for path in files
        for line, why in dangers(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from multiprocessing import Pool",
        "import xml.etree.ElementTree as tree",
        "from xml import sax",
        "from os import system",
        "from yaml import Loader",
        "eval(text)",
        "subprocess.run(command, shell=True)",
        "subprocess.run(command, shell=asked)",
        "asyncio.create_subprocess_shell(text)",
        "yaml.load(text, Loader=yaml.SafeLoader)",
        "yaml.parse(text, Loader=yaml.Loader)",
        "context.verify_mode = ssl.CERT_NONE",
        "context.check_hostname = False",
        "one.check_hostname, one.verify_mode = False, mode",
        "get(url, verify=False)",
    ],
)
def test_each_danger_is_found(source: str) -> None:
    assert list(dangers(source))


@pytest.mark.parametrize(
    "source",
    [
        "re.compile(text)",
        "self.eval(text)",
        "yaml.safe_load(text)",
        "from xml.sax.saxutils import escape",
        "get(url, verify=True)",
    ],
)
def test_what_is_harmless_is_let_be(source: str) -> None:
    assert list(dangers(source)) == []
