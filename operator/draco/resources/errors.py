"""The base of every error that a person can act on.

Owns one class. Each package derives its own small hierarchy from it; the command line prints nothing but its sentence.
"""


class DracoError(Exception):
    """Something is wrong that a person can put right: `str()` is one clear sentence saying what, and what to do about it.

    An error that is a defect of ours must not derive from this class: it should reach the log with its traceback.
    """
