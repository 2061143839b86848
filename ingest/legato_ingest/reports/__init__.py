"""What people read about streams: a stream by its id, its gaps and verdicts, blame, what runs now, and an incident.

Each report sends its SQL through a ``Run`` of the caller and shapes the rows; the command line and the web page show the same results. The
room neither opens a store nor renders for a terminal or a browser. It imports root leaves only, so that a command starts without numpy.
"""
