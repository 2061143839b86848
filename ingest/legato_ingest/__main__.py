"""`python -m legato_ingest`, and the command `legato`."""

from legato_ingest.cli.main import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
