"""What other tools' configuration becomes in Draco, and what of it cannot.

Owns the readers of foreign formats, as strict as the tools that read them, and the conversion to Draco's kinds. Pure: no I/O.
A conversion never widens what was written: what has no equal is a rest, with the reason and what to do about it.

Rooms: `mig_parted` (layouts of mig-parted and the MIG manager) with `device_ids` (the boards that its filters name), and
`device_plugin` (how NVIDIA's device plugin shares GPUs), over `conversion` (what a conversion gives); and `workloads` (pods that
ask the plugin for GPUs, as edits of their manifests) over `extended_requests` and `node_choice`, which uses `node_labels`.
"""
