"""What is done to the GPUs of a simulated node on purpose: faults, boards taken out, MIG changed by hand."""
