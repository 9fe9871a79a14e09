"""Maintenance: which taints devices need that are taken out of service, by request or by rule, and where a request stands.

Owns the state machine of DeviceMaintenance as one function from what is seen to a plan. Must not read a clock, write a log or
talk to the API server: the controller carries the plans out.

`plan` is the state machine, made from a `snapshot`; `readiness` says whether work may start, `gate` whether and when a
request may begin, `wording` what it says of itself. `rules` is the taint rule of one device.

Rooms: `selecting` (which devices a request means, and what taking them would do), `budgets` (how many at once, and whose turn it
is), `isolating` (what keeps claims off), `draining` (how pods leave), `working` (Jobs, and verification).
"""
