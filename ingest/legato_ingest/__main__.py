"""`python -m legato_ingest`, and the command `legato`."""

from legato_ingest.lean import be_lean

# Before anything imports pyarrow or starts a thread.
be_lean()

from legato_ingest.cli.main import main  # noqa: E402

__all__ = ["main"]

if __name__ == "__main__":
    main()
