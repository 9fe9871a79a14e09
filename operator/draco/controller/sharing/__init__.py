"""SharingPolicies: `decisions` reads the view and decides the form of each node's GPUs, `policies` writes their statuses.

`controller.gpu_nodes` writes the forms to the GpuNodes.
"""
