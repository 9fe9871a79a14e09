"""What SharingPolicies want of each GPU: which of several claims may have a share of it, and how it is published for that.

`terms` is the published form of a shared device, written and read back. `enforcement` is what a node can hold shares to. `decide`
chooses the policy of each GPU, and keeps its form while claims hold it in another. `clearance` has the handshake before a form
changes. `summary` counts for a policy's status.
"""
