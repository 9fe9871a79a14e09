"""Which of two places is better: what is lost on their GPUs, how near devices are to each other, and how full nodes are.

Must not search, nor know what a claim may have: it sees devices that somebody else found.
"""
