"""Ask OSV for known vulnerabilities of locked packages: `python -m scripts.audit [--must-look]`.

Owns which lock files are audited, which findings are ignored and why, and the exit code: 1 if something is found, or if OSV does
not answer and `--must-look` is given. Without that option, a missing answer is reported but is no failure: a machine may be
offline. pip-audit asks OSV.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from draco.resources.texts import counted

ROOT: Final = Path(__file__).parent.parent
LOCKS: Final = ("runtime", "build", "dev")
LET_BE: Final[Mapping[str, str]] = {}
"""Findings that are ignored: the reason by their id in OSV or another database."""


def main() -> None:
    """Ask, and print what was found."""
    parser = argparse.ArgumentParser(description="Ask OSV for known vulnerabilities of locked packages.")
    parser.add_argument("--must-look", action="store_true", help="fail if OSV does not answer")
    parser.add_argument("--osv-url", help="another server with OSV's API")
    asked = parser.parse_args()
    server = ["--osv-url", asked.osv_url] if asked.osv_url else []
    found = False
    for name in LOCKS:
        lock = f"requirements/{name}.txt"
        answered = audited(lock, server)
        if isinstance(answered, str):
            print(f"{lock}: NOT AUDITED. OSV did not answer ({answered}): run `make audit` again with a network.")
            sys.exit(1 if asked.must_look else 0)
        told = list(findings(answered, LET_BE))
        found = found or bool(told)
        print(f"{lock}: {counted(len(answered), 'package')}, {counted(len(told), 'finding')}", *told, sep="\n  ")
    sys.exit(1 if found else 0)


def audited(lock: str, server: Sequence[str]) -> list[dict[str, Any]] | str:
    """pip-audit's answer for each package in a lock file, or the last line of its error."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", lock, "--require-hashes", "--disable-pip"]
    options = ["--vulnerability-service", "osv", "--format", "json", "--progress-spinner", "off"]
    done = subprocess.run([*command, *options, *server], cwd=ROOT, capture_output=True, text=True, check=False)
    try:
        packages: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except ValueError:
        return (done.stderr.strip().splitlines() or [f"pip-audit ended with {done.returncode}"])[-1]
    return packages


def findings(packages: Sequence[dict[str, Any]], let_be: Mapping[str, str]) -> Iterator[str]:
    """One line for each vulnerability that is not ignored."""
    for package in packages:
        for one in package.get("vulns", []):
            if let_be.keys() & {one["id"], *one["aliases"]}:
                continue
            fixed = f"; fixed in {', '.join(one['fix_versions'])}" if one["fix_versions"] else "; not fixed yet"
            names = ", ".join([one["id"], *one["aliases"]])
            yield f"{package['name']} {package['version']}: {one['description']} ({names}){fixed}"


if __name__ == "__main__":
    main()
