"""What the test image runs: `draco`, with an agent on simulated GPUs.

Owns that choice. The GPUs are those of the node's state file, which `draco cluster` puts there.
"""

import sys

from draco.cli import main as draco
from draco_local.simulator.agent import main as agent
from draco_local.simulator.gpus import state


def main() -> None:
    """Run the agent on the node's simulated GPUs, and everything else as the product does."""
    if sys.argv[1:2] == ["agent"]:
        agent([*sys.argv[2:], "--state", str(state.ON_A_NODE)])
    else:
        draco()


if __name__ == "__main__":
    main()
