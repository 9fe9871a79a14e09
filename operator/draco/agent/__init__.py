"""The node agent: the DRA driver of one node.

Owns reading the node's GPUs, publishing them, serving kubelet's plugin sockets, preparing claims, and reporting. Must not
decide anything about other nodes, and keeps no state in modules: many agents can run in one process.

Rooms: `process` (options and signals), `app` (wiring) and `startup` (from what the last run left); `nvml` and `nvml_instances`,
the only callers of pynvml, with `gpus`, `instances` and `nvml_errors` (what they answer), `pcie`, and `hardware` (the latest
view of all that); `slices` and `partitions` (what is published), `offering` and `offers` (what of it, and when), `publisher`
(who writes it); `plugin` and `wire` (kubelet's sockets), `dra_service` and `health_service` (kubelet's calls); `claim_plan`
(what Prepare has to do) and `prepare` (doing it), `claim_work` and `lanes` (where), `checkpoint`, `journal`, `cdi`,
`capabilities`, `files`, `recovery`, `rebuilding` and `leftovers` (claims on this node); `dividing` (how GPUs are divided, put
together), `instance_manager` (making and destroying instances), `mig_inventory` (what there is), `holdings` (whose they are),
`failures` (where making fails), `claim_instances` (for claims), `mig_layout` and `mig_keeper` (for policies), `holders` (who
keeps one); `claim_status`, `node_status`, `mig_report`, `conditions`, `endpoints` and `metrics` (reports); `guard` and
`unix_sockets` (one plugin per driver and node); `errors`; `api` and `proto` (kubelet's messages).
"""
