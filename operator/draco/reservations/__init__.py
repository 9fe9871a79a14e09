"""Devices reserved for future pods: the claims of a DeviceReservation, and what to do about them.

Pure. `claims`: manifests and ownership of its claims. `validity`: whether it is valid, its end and priority. `plan`: claims to
make and delete, and those unused for too long. `status`: its status. `takeover`: how a pod's own claim gets reserved devices.
"""
