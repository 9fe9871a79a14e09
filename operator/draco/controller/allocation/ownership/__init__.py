"""Hands GPUs over to Draco and back: `handover` (one step at a time), `register` (the AllocationRegister, and who is in it).

The admission policies of the chart read the register: only the operator that it names may allocate the GPUs in it. The order of
the steps is `draco.allocation.ownership.handover`'s.
"""
