"""The operator: it sees the whole cluster, explains pending claims, maintains and divides GPUs, and allocates those handed over.

Owns what runs in `draco operator`. Every replica watches, answers probes and exports metrics; only the leader writes. Is never on
kubelet's path: a pod whose claims are allocated starts without it.

Rooms, each knowing only those after it: `app` (wiring), `handlers` with `kopf_thread` and `own_kinds` (the operator in Kopf's
terms), the reconcilers in `allocation`, `limits`, `reservations`, `claims`, `maintenance`, `taints`, `mig` and `health`, then
`view` (what is known of the cluster), `workers` (processes that answer what users ask). Beside them: `reconcilers` (which there
are), `reconciling` (queue, workers and their numbers), `fencing`, `evictions`, `own_status` (written by several), `own_advice`
with `reviews` (the webhook), `loop_watch` (the event loop and long work), `metrics`, `self_report`, `settings`.
"""
