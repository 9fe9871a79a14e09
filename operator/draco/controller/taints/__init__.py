"""DeviceTaintRules and what they put on devices.

Rooms: `reach` (how many devices, claims and pods each rule meets), `reports` (Events that say so on people's rules), `extensions`
(rules that put a person's taint on what is the same hardware). Isolation for maintenance is planned by `draco.maintenance`.
"""
