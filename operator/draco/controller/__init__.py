"""The operator: it sees the whole cluster, says why claims are pending, carries out maintenance, and has GPUs partitioned.

Owns what runs in `draco operator`. Every replica watches, answers probes and exports metrics; only the leader writes. Must not
be needed for a pod to start: it is never on kubelet's path.

Rooms, each knowing only those after it: `app` (wiring), `handlers` with `kopf_thread` and `own_kinds` (the operator in Kopf's
terms), `claims`, `taints` and `mig` (reconcilers), `health` (reconcilers of HealthPolicies), `view` (what is known of the
cluster), `workers` (processes that answer what users ask). Beside them: `reconciling` (queue, workers and their numbers),
`loop_watch` (the event loop and long work), `metrics`, `settings`.
"""
