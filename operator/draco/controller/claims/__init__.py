"""Explains pending claims to their authors: in Events, and by `draco explain` over HTTP.

Rooms: `pending_claims` (one Event for each pod or claim that waits), `explaining` (asks the workers, and remembers what they
said), `pod_questions` (which question a pod is). Changes no claim.
"""
