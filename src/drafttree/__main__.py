"""`python -m drafttree` is the command `drafttree`."""

from drafttree.interfaces.cli import main

if __name__ == "__main__":
    main()
