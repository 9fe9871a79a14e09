"""What waits for devices, in groups and in which order (`waiting`), and what is known and said of those that wait.

Must not choose a place or write a claim.
"""
