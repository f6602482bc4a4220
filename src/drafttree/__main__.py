"""`python -m drafttree` is the command `drafttree`."""

from drafttree.cli import main

if __name__ == "__main__":
    main()
