"""Workers: processes that search and evaluate, so that nothing users write can block the event loop.

One process holds the fleet and forks children for questions (`fleet_process`), so that children share its memory and can be
killed at any time without loss. A child answers one question at a time within a budget of CPU time and memory, and names the most
costly selector if the budget is exceeded (`answering`).

On the operator's side, `pool` is the interface: it asks, remembers what is too costly, and replaces a process that died
(`process`). `fleet_feed` passes on changes of the cluster, `fair_queue` chooses the next question, `places` tracks what is being
answered where. `messages` is the protocol. The processes get no credentials, only Python's environment, and end with the
operator.
"""
