"""Takes back allocations that no pod uses: pods cannot start (`useless`, `returns`), or no longer exist (`leaks`).

Must not take anything from a running pod.
"""
