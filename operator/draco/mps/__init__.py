"""`draco mps`: keeps the MPS control daemons that a node's claims need.

A program of its own in a DaemonSet of its own: clients of a daemon die with it, so it must not end when an agent is replaced, nor
when its keeper is. `keeper` decides, `processes` finds what runs, `launch` starts one outside of the keeper's container,
`process` has the options. Agent and keeper meet in `agent.mps.folder`.
"""
