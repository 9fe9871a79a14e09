"""Device health: faults, their ledger, and the policy that turns them into taints.

Will own what a fault means. Holds nothing yet: this version reports health and acts on none of it.
"""
