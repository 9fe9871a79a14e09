"""The observer: judges a run from outside, and shares no code with what it judges.

It sees what anyone can see: the API server's lists and watches, the CDI folders and state files of the simulated nodes, and the
programs' logs. Nothing here imports `draco`; `tests/adversary/cluster/test_observer.py` checks that.
Rooms: `world` (known objects), `laws` (laws about objects), `hardware` (files on the nodes), `programs` (running programs),
`fairness` (which time counts), `api` (plain HTTP), `watching` (lists and watches), `observer` (all of it in its own thread).
"""
