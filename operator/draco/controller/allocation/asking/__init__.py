"""When each group that waits is asked about (`schedule`, `releases`), and what is asked ahead of time (`foresight`).

Must not ask: `allocations` does.
"""
