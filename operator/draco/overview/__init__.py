"""Overviews: what `draco status` and `draco layout` show, computed from one reading of the cluster.

Owns the arithmetic, and the structs of the JSON documents and screens. Pure: no I/O, no clock, no terminal.

Rooms: `status` (devices, claims, rules, requests and policies) over `snapshot` (what was read), with `status_warnings` (what no
table shows) and `hardware_use` (who uses which part of the same hardware), `layouts` (how GPUs are divided) and `layout_plan`
(what policies would change) with `layout_foreseen` (for one GPU), each with its schema.
"""
