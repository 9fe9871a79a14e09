"""Messages of kubelet's gRPC contracts, generated from `../proto` by `scripts/generate_protos.py`. Do not edit."""
