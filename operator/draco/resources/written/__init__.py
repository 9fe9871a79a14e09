"""Written objects: manifests, older versions, and the API server's validation."""
