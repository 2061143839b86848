"""`legato doctor`: what is wrong with a set-up, and what to do.

One idea: `findings` is what a check is and how checks are asked; `doors` and `data` are the checks. None of it is imported by the server.
"""
