"""`draco withdraw`: takes back what Draco wrote on objects of other kinds than its own. The chart's uninstallation runs it.

Rooms: `plan` decides what to take back and what stays; `cluster` reads and writes; `command` has the options and the screen.
"""
