"""Maintenance: which taints devices need that are taken out of service, by request or by rule, and where a request stands.

Owns the state machine of DeviceMaintenance as one function from what is seen to a plan. Must not read a clock, write a log or
talk to the API server: the controller carries the plans out.

Rooms: `rules` (the exact taint rule of one device, and a rule on one device put on all that is the same hardware), `matching`
(which devices a request concerns), `plan` (the state machine, from `plan_input`), `readiness` (whether work may start), `wording`
(what it says of itself), `isolation` (what agents are notified of it).
"""
