"""Hands GPUs over to Draco and back: `handover` (one step at a time), `register` (the AllocationRegister and its leader).

The chart's admission policies read the register: only the operator that it names may allocate its GPUs.
`draco.allocation.ownership.handover` decides the order of the steps.
"""
