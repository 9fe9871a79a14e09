"""The waiting groups in order (`waiting`), and what is known and reported about them.

Must not choose a place or write a claim.
"""
