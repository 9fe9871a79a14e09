"""The operator: it sees the whole cluster, says why claims are pending, carries out maintenance, and has GPUs partitioned.

Owns what runs in `draco operator`. Every replica watches, answers probes and exports metrics; only the leader writes. Must not
be needed for a pod to start: it is never on kubelet's path.

Rooms: `app` (wiring), `settings`, `view` (what is known of the cluster, indexed), `following` (the fleet, change by change),
`maintenance`, `pending_claims` with `explaining`, and `taints` (one reconciler or reading each), `mig_layouts` and
`mig_policies` on `mig_decisions` (what is wanted of GPUs, and where policies stand), `repair` (idle claims in the way of pods)
with `repair_texts`, `movable_claims` (which may be moved) and `claim_release` (takes back what they hold), `handlers` and
`kopf_thread` (Kopf, for our own kinds), `reconciling` (queue, workers and their numbers), `bites` (long work that lets others
in), `metrics`, `health` (HTTP), `admission` and `webhook` (advice to authors of claims).
"""
