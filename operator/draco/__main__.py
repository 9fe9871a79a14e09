"""`python -m draco`: the command line where the `draco` script is not on PATH."""

from draco.cli import main

if __name__ == "__main__":
    main()
