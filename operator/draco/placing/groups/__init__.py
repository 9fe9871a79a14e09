"""Places for groups of pods: for enough members to start, or for none.

`group` has the input and output, `place` is the entry point. `gang_search` tries members and topology domains (`topology`), also
so that kube-scheduler finds the other devices of a pod. Never takes devices away from claims.
"""
