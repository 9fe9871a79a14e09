"""What waits for devices (`waiting`), the groups that pods form (`gang_terms`), and what is known and said of those that wait.

Must not choose a place or write a claim.
"""
