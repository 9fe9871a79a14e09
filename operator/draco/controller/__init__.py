"""The operator: watches the cluster, explains pending claims, maintains and partitions GPUs, and allocates those handed over.

Owns what runs in `draco operator`. Every replica watches, serves probes and exports metrics; only the leader writes. It is never
on kubelet's path: pods with allocated claims start without it.

Rooms, each importing only later ones: `app` (wiring), `handlers` with `kopf_thread` and `own_kinds` (the operator in Kopf's
terms), the reconcilers in `allocation`, `limits`, `reservations`, `webhook`, `claims`, `maintenance`, `fencing`, `gpu_nodes`,
`taints`, `mig` and `health`, then `view` (the watched state of the cluster), `workers` (processes that answer users' questions).
Beside them: `reconcilers` (the list), `reconciling` (queue, workers, metrics), `evictions` and `deallocation_writes` (shared
writes), `own_status` (status of our own kinds), `waiting_times` (since when pods and claims wait), `loop_watch` (event loop
latency), `metrics`, `self_report`, `settings`.
"""
