"""The admission webhook: warnings for whoever writes a claim or one of Draco's own kinds, and the scheduling gate for new pods.

It denies a claim only where that is configured, and in doubt never. Nothing is written here. Rooms: `server` (TLS and routes),
`claim_advice` (asks the workers about claims), `own_kind_advice` (Draco's own kinds), `pod_gates` (new pods),
`admission_review` (the wire format).
"""
