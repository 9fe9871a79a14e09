"""A local Kubernetes with GPUs: programs, certificates, processes, simulated and real nodes; also kind and someone else's.

Owns starting, recording and removing clusters. Must not know what Draco does on them.

Rooms, each knowing only those after it: `clusters` (by name), `providers` (local, kind, existing), `realnode` (kubelets in
namespaces), `attach` (what Draco puts onto any cluster), `controlplane` (etcd and Kubernetes' servers), `programs` (where they
come from). Beside them: `process` (recorded background processes), `state`, `pki`, `kubeconfig`, `errors`.
"""
