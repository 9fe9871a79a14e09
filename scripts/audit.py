"""Ask OSV for known vulnerabilities of what is locked: `python -m scripts.audit [--must-look]`.

Owns what is asked about, which findings do not concern us and why, and the answer's end: 1 where something is found, and where
`--must-look` is given and OSV does not answer. Without it no answer is said, and no failure: a machine may be without a network.
pip-audit asks.
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
"""Findings that do not concern us: the reason by OSV's or another database's name."""


def main() -> None:
    """Ask, and print what was found."""
    parser = argparse.ArgumentParser(description="Ask OSV for known vulnerabilities of what is locked.")
    parser.add_argument("--must-look", action="store_true", help="fail where OSV does not answer")
    parser.add_argument("--osv-url", help="another server that answers as OSV does")
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
    """What pip-audit says of each package in a lock file; the error's last line where it says nothing."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", lock, "--require-hashes", "--disable-pip"]
    options = ["--vulnerability-service", "osv", "--format", "json", "--progress-spinner", "off"]
    done = subprocess.run([*command, *options, *server], cwd=ROOT, capture_output=True, text=True, check=False)
    try:
        packages: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except ValueError:
        return (done.stderr.strip().splitlines() or [f"pip-audit ended with {done.returncode}"])[-1]
    return packages


def findings(packages: Sequence[dict[str, Any]], let_be: Mapping[str, str]) -> Iterator[str]:
    """One line for each vulnerability that concerns us."""
    for package in packages:
        for one in package.get("vulns", []):
            if let_be.keys() & {one["id"], *one["aliases"]}:
                continue
            fixed = f"; fixed in {', '.join(one['fix_versions'])}" if one["fix_versions"] else "; not fixed yet"
            names = ", ".join([one["id"], *one["aliases"]])
            yield f"{package['name']} {package['version']}: {one['description']} ({names}){fixed}"


if __name__ == "__main__":
    main()
