"""The node agent: the DRA driver of one node.

Owns reading the node's GPUs, publishing them, serving kubelet's plugin sockets, preparing claims, and reporting. Must not
decide anything about other nodes, and keeps no state in modules: many agents can run in one process.

Rooms: `app` (wiring), `nvml` (the only caller of pynvml), `slices` and `publisher` (what is published), `plugin` and `wire`
(kubelet's sockets), `prepare`, `cdi`, `checkpoint` and `recovery` (claims on this node), `claim_status` and `node_status`
(reports), `guard` (one plugin per driver and node), `endpoints` (health and metrics), `api` and `proto` (kubelet's messages).
"""
