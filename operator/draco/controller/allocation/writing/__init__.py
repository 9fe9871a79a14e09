"""Writes to other objects: allocations to claims (`writes`), gate removals to pods (`gates`), annotations to nodes (`holds`).

Must not decide which devices a claim gets.
"""
