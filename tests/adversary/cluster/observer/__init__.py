"""The observer: judges a run from outside, and shares no code with what it judges.

It sees what anybody could see: the API server's lists and watches, the CDI folders and state files of the simulated nodes, and
the programs' logs. Nothing here imports `draco`; `tests/adversary/cluster/test_observer.py` holds it to that.
Rooms: `world` (what is known), `laws` (what must hold), `hardware` (what lies on the nodes), `programs` (who runs), `fairness`
(which time counts), `api` (plain HTTP), `watching` (lists and watches), `observer` (all of it in a thread of its own).
"""
