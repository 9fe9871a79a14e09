"""The node agent: the DRA driver of one node.

Owns reading the node's GPUs, publishing them, serving kubelet's plugin sockets, preparing claims, and reporting. Must not
decide anything about other nodes, and keeps no state in modules: many agents can run in one process.

Rooms: `process` (options and signals) and `app` (wiring); `nvml`, the only caller of pynvml, with `gpus` and `nvml_errors` (what
it answers), `pcie`, and `hardware` (the latest view of all that); `slices` (what is published) and `publisher` (who writes it);
`plugin` and `wire` (kubelet's sockets), `dra_service` and `health_service` (kubelet's calls); `prepare`, `checkpoint`, `cdi`,
`files`, `recovery` and `leftovers` (claims on this node); `claim_status`, `node_status`, `conditions`, `endpoints` and `metrics`
(reports); `guard` (one plugin per driver and node); `errors`; `api` and `proto` (kubelet's messages).
"""
