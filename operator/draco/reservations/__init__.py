"""Devices that are reserved for pods to come: what a DeviceReservation's claims are, and what is to be done about them.

Pure. `claims` says how its claims look and which are its own, `asking` whether what it asks for can be reserved, until when and
at which priority, `plan` what is to be made and deleted, and what no pod uses for too long, `status` what it says of itself,
`takeover` how a pod's own claim gets its devices.
"""
