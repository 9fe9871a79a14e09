"""Places for groups of pods: for as many members at once as it takes to start, or for none.

`group` is what is asked and answered, and `place` the front door. `gang_search` tries members and parts of the cluster
(`topology`) in turn, also so that kube-scheduler finds the rest that a pod needs. Must not take anything from anybody.
"""
