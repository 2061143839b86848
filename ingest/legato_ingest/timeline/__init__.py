"""The timeline of a stream's chunks: its packed format, and the statistics computed from it; numpy only, without I/O.

It offers ``codec`` (decode), ``statistics.describe``, ``reads`` (reads, epochs and gaps) and ``ragged.Segments`` (many short arrays end to
end). It may import the root leaves only.
"""
