"""The selector language: from a CEL expression to a function over a device.

Will own parsing, checking and compiling, as Kubernetes' own environment defines them. Holds nothing yet: selectors are not
evaluated by this version, and whatever depends on one says so.
"""
