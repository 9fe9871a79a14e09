"""The node agent: the DRA driver of one node.

Owns reading the node's GPUs, publishing them, serving kubelet's plugin sockets, preparing claims, and reporting. Must not
decide anything about other nodes, and keeps no state in modules: many agents can run in one process.

Rooms, each knowing only those after it: `process` (options and signals), `app` and `parts` (wiring), `startup` (from what the
last run left), `report` (claim status, GpuNode), `plugin` (kubelet's sockets and calls), `publish` (ResourceSlices), `claims`
(prepared and given up), `containers` (what each gets of the driver), `mig` (GPU instances), `record` (on disk), `hardware` (NVML
and what it says).
"""
