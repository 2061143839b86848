"""`legato doctor`: checks of an installation from outside, each with a finding and what to do about it.

``findings`` defines a check and runs checks; ``endpoints``, ``grpc_endpoint`` and ``data`` hold the checks; ``command`` prints them. The
server never imports this room.
"""
