"""Overviews: what `draco status` and `draco layout` say of a cluster, worked out from what was read of it.

Owns the arithmetic, and the structs that their JSON documents and screens show. Pure: no I/O, no clock, no terminal.

Rooms: `status` (devices, claims, rules, requests and policies) over `snapshot` (what was read), with `status_warnings` (what
no table shows) and `hardware_use` (who uses what of one piece of hardware),
`layouts` (how GPUs are divided) and `layout_plan` (what policies would change) with `layout_foreseen` (for
one GPU), each with its schema.
"""
