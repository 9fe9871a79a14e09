"""The audit of locked dependencies: it finds what OSV knows, and says if no server answered."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from scripts import audit

ROOT = Path(__file__).parents[2]
ADVICE = {
    "id": "GHSA-1",
    "aliases": ["CVE-1"],
    "summary": "A key is shown",
    "affected": [
        {
            "package": {"name": "aiohttp", "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "99.1"}]}],
        }
    ],
}


class Osv:
    """A server that knows vulnerabilities of some packages."""

    def __init__(self) -> None:
        self.vulnerable: set[str] = set()
        self.asked: set[str] = set()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self.server.server_port}/"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        osv = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                package = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["package"]["name"]
                osv.asked.add(package)
                answer = json.dumps({"vulns": [ADVICE]} if package in osv.vulnerable else {}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


@pytest.fixture
def osv() -> Iterator[Osv]:
    made = Osv()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


def audited(*arguments: str) -> tuple[int, str]:
    """The exit status and the output of the audit."""
    done = subprocess.run(
        [sys.executable, "-m", "scripts.audit", *arguments],
        cwd=ROOT,
        env=os.environ | {"NO_PROXY": "*"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.exhaustive
def test_all_that_is_locked_is_asked_about(osv: Osv) -> None:
    status, said = audited("--osv-url", osv.url)
    assert (status, said.count(" 0 findings")) == (0, 3), said
    assert osv.asked >= {"aiohttp", "hatchling", "pytest"}


def test_a_known_vulnerability_fails_the_audit_and_is_named_with_its_fix(osv: Osv) -> None:
    osv.vulnerable = {"aiohttp"}
    status, said = audited("--osv-url", osv.url)
    assert status == 1
    assert ": A key is shown (CVE-1, GHSA-1); fixed in 99.1\n" in said


@pytest.mark.parametrize(("option", "status"), [([], 0), (["--must-look"], 1)])
def test_that_nobody_answered_is_said_and_fails_only_where_it_must_not(option: list[str], status: int) -> None:
    ended, said = audited("--osv-url", "http://127.0.0.1:9/", *option)
    assert ended == status
    assert "requirements/runtime.txt: NOT AUDITED. OSV did not answer (" in said
    assert "Connection refused" in said
    assert "Traceback" not in said


def test_what_does_not_concern_us_is_left_out_by_any_of_its_names() -> None:
    package = {
        "name": "aiohttp",
        "version": "1",
        "vulns": [{"id": "GHSA-1", "aliases": ["CVE-1"], "description": "Bad", "fix_versions": []}],
    }
    assert list(audit.findings([package], {})) == ["aiohttp 1: Bad (GHSA-1, CVE-1); not fixed yet"]
    assert list(audit.findings([package], {"CVE-1": "we do not show keys"})) == []
