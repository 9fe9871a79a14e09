"""MIG planning: boards, geometry, placement, layouts, repair.

Will own every decision about partitions, from what NVML reports for a board. Holds nothing yet: this version publishes
whole GPUs.
"""
