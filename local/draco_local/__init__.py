"""A local Kubernetes with simulated GPUs, to try, develop and test Draco.

Not part of the product: `draco` never imports it. Its commands join `draco` as entry points.
"""
