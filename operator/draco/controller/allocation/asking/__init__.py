"""When to ask about each waiting group (`schedule`, `releases`), and what to ask ahead of time (`foresight`).

Must not ask: `allocations` does.
"""
