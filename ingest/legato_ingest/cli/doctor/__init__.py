"""`legato doctor`: checks of a set-up from outside, each with what was found and what to do.

``findings`` defines a check and runs checks; ``endpoints`` and ``data`` hold the checks; ``command`` prints them. The server never
imports this room.
"""
