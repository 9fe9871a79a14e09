"""A local Kubernetes with GPUs: binaries, certificates, processes, simulated and real nodes; also kind and someone else's.

Owns starting, recording and removing clusters. Must not know what Draco does on them.

Rooms: `versions` (what each Kubernetes minor knows), `binaries` and `build` (where programs come from), `pki` and
`kubeconfig` (who may talk to whom), `process` (recorded background processes), `controlplane` (etcd and Kubernetes'
servers), `state` (what is remembered of a cluster), `local`, `kind` and `existing` (the three providers), `attach` (what Draco
puts onto any of them), `realnode` (kubelets in namespaces), `errors`.
"""
