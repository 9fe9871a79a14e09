"""The admission webhook: warnings for authors of claims and of Draco's own kinds, and the scheduling gate for new pods.

It denies claims only where configured, and never in doubt. Writes nothing. Rooms: `server` (TLS and routes), `claim_advice` (asks
the workers about claims), `own_kind_advice` (Draco's own kinds), `pod_gates` (new pods), `admission_review` (the wire format).
"""
