"""Draco's Kubernetes client: one way to connect, one way to watch, one way to write.

Owns requests to the API server and what is built on them. Decides nothing about devices.

Rooms: `events` (Events about objects), over `watch` (informers and stores), over `connect` (credentials, transport, typed
requests). Beside them: `queue` (the reconcilers' work queue), `election` (one leader), `discovery` (cluster features),
`listeners` (callbacks), `clock`, `errors`.
"""
