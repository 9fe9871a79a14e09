"""Maintenance: which taints devices need to be out of service, by request or by rule, and where a request stands.

Owns the state machine of DeviceMaintenance: one pure function from a snapshot to a plan. Must not read a clock, write a log or
talk to the API server: the controller carries out the plans.

`plan` is the state machine and `snapshot` its input; `readiness` says whether work may start, `gate` whether and when a request
may begin, `wording` has its messages. `taint_rules` builds the taint rule of one device.

Rooms: `selecting` (which devices a request means, and what taking them would do), `budgets` (how many at once, and in which
order), `isolating` (what keeps claims off), `draining` (how pods leave), `working` (Jobs and verification).
"""
