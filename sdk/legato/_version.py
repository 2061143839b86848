"""The SDK's version, which is also sent on the wire. A test compares it with ``sdk/pyproject.toml``."""

__version__ = "0.1.0"
