"""What is wired for an operator."""

import subprocess
import sys


def test_an_operator_that_allocates_nothing_loads_nothing_of_what_allocates() -> None:
    code = "import sys, draco.controller.app; print([m for m in sys.modules if m.startswith('draco.controller.allocation')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
