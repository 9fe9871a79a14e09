"""The operator: it sees the whole cluster, explains pending claims, maintains and divides GPUs, and allocates those handed over.

Owns what runs in `draco operator`. Every replica watches, answers probes and exports metrics; only the leader writes. Is never on
kubelet's path: a pod whose claims are allocated starts without it.

Rooms, each knowing only those after it: `app` (wiring), `handlers` with `kopf_thread` and `own_kinds` (the operator in Kopf's
terms), the reconcilers in `allocation`, `limits`, `reservations`, `webhook`, `claims`, `maintenance`, `fencing`, `gpu_nodes`,
`taints`, `mig` and `health`, then `view` (what is known of the cluster), `workers` (processes that answer what users ask). Beside
them: `reconcilers` (which there are), `reconciling` (queue, workers and their numbers), `evictions` and `deallocations` (writes
that several make), `own_status` (the status of our own kinds, and our own writes on their way back), `loop_watch` (the event loop
and long work), `metrics`, `self_report`, `settings`.
"""
