"""Workers: processes that answer what needs searching or evaluating, so that whatever users write never holds the event loop.

One process of its own holds the fleet and forks a child whenever questions come (`fleet_process`), so that all children share its
memory and may be killed at any time without anything being lost. A child answers one question at a time within a budget of CPU
time and memory, and says which selector is too costly where that does not suffice (`answering`).

On the operator's side, `contract` is what others see. `fleet_feed` hands on every change of the cluster, `fair_queue` says whose
turn it is, `places` what is being answered where, `pool` asks, remembers what is too costly, and replaces a process that died
(`process`). `messages` is what both sides say to each other. The processes get no credentials and no environment but what Python
needs, and end with the operator.
"""
