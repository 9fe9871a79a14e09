"""`draco withdraw`: takes back what Draco has written on objects that are not its own. The chart's uninstallation runs it.

Rooms: `plan` says what is to be taken back, and what stays; `cluster` reads and writes; `command` has the options and the screen.
"""
