"""`python -m legato_ingest`, and the command `legato`."""

from legato_ingest.lean import without_pandas

# Before anything imports pyarrow.
without_pandas()

from legato_ingest.cli.main import main  # noqa: E402

__all__ = ["main"]

if __name__ == "__main__":
    main()
