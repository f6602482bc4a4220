"""The command `drafttree`, also as `python -m drafttree`."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C while it is still imported ends it as later ones do."""
    try:
        from drafttree.interfaces.cli import main

        main()
    except KeyboardInterrupt:
        print("drafttree: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
