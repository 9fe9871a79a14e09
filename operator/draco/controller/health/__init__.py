"""HealthPolicies: what they decide about the faults that agents report.

Rooms: `decisions` (per node), `policies` (the status of policies), `remediation` (the DeviceMaintenances they open),
`fault_notices` (Events for pods on a sick GPU). Taints reach agents through `controller.gpu_nodes`.
"""
