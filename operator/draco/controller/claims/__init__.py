"""Explains pending claims to their authors: in Events, and to `draco explain` over HTTP.

Rooms: `pending_claims` (one Event per waiting pod or claim), `explaining` (asks the workers, caches answers), `pod_questions`
(which pods ask the same). Changes no claim.
"""
