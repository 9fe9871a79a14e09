"""What the agent and the operator require of structs: both decode them in several threads."""

import subprocess
import sys

FIRST_MET_BY_TWO = """
import sys
import threading

import msgspec

sys.setswitchinterval(1e-6)
STRUCTS = '''
class Inner(msgspec.Struct):
    one: "dict[str, list[int]] | None" = None
    two: "dict[str, list[str]] | None" = None

class Outer(msgspec.Struct):
    inners: "list[Inner]"
    more: "dict[str, Inner] | None" = None
'''

def decode(both, outer):
    both.wait()
    assert msgspec.json.decode(b'{"inners": [{"one": {"a": [1]}}]}', type=outer).inners[0].one == {"a": [1]}

for _ in range(200):
    exec(STRUCTS, globals())
    both = threading.Barrier(2)
    threads = [threading.Thread(target=decode, args=(both, Outer)) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
"""


def test_two_threads_may_meet_a_struct_for_the_first_time_at_once() -> None:
    """With msgspec 0.22 the process crashes: one thread reads the struct's type information while the other still builds it."""
    done = subprocess.run([sys.executable, "-c", FIRST_MET_BY_TWO], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
