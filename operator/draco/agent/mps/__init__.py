"""MPS as agent and keeper see it: the folder that they share, and the control daemons that answer through it."""
