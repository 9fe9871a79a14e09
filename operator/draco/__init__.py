"""Draco: the control plane that makes GPUs under Kubernetes Dynamic Resource Allocation operable.

Three programs share this package: the operator, the node agent and the command line. Import from the subpackage that owns
what you need; this module owns only the version.
"""

__version__ = "0.1.0"
