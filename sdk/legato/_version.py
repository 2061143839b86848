"""The version that the SDK says of itself on the wire; the same as in ``sdk/pyproject.toml``, and a test holds the two together."""

__version__ = "0.1.0"
