"""Real nodes on one machine: kubelet, containerd and kube-proxy in namespaces of their own, like a small kind.

Owns everything that needs root: namespaces, mounts, cgroups, the bridge between the nodes. Must leave nothing of it behind.

Rooms: `nodes` (the nodes of one cluster: boot, power, images, removal), `init` (a node's first process), `config` (what is in a
node), `network`, `cgroup`, `image`, `agent` and `join` (the agent on a node, and its identity), `check` (what the machine lacks).
"""
