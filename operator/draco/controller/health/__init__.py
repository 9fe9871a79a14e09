"""HealthPolicies: what they make of the faults that agents report.

Rooms: `decisions` (for each node), `policies` (the status of policies), `remediation` (the DeviceMaintenances that they open),
`fault_notices` (Events for pods whose GPU is sick). What agents are to taint reaches them through `controller.gpu_nodes`.
"""
