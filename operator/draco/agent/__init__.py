"""The node agent: the DRA driver of one node.

Owns reading the node's GPUs, publishing them, serving kubelet's plugin sockets, preparing claims, and reporting. Must not decide
anything about other nodes. Keeps no state in modules: many agents can run in one process.

Rooms, each knowing only those after it: `process` (options, signals), `app`, `wakes` and `parts` (wiring), `startup` (recovery),
`report` (claim status, GpuNode), `plugin` (kubelet's calls), `publish` (ResourceSlices), `claims` (Prepare and Unprepare),
`containers` (driver files), `mig` (GPU instances), `state` (facts and changes), `record` (on disk), `hardware` (NVML).
"""
