"""What is written to other objects: allocations to claims (`writes`), gates off pods (`gates`), annotations to nodes (`holds`).

Must not decide which devices a claim gets.
"""
