"""DeviceTaintRules and their effect on devices.

Rooms: `reach` (how many devices, claims and pods each rule affects), `reports` (Events with that on people's rules), `extensions`
(rules that extend a person's taint to the same hardware). `draco.maintenance` plans isolation for maintenance.
"""
