"""One module per dashboard: its panels, their SQL and their descriptions."""

from dashboards.boards import attribution, chunking, compare, cost, itl, nodes, now, runbook, self, stream, streams

__all__ = ["BOARDS"]

BOARDS = (
    streams.board,
    now.board,
    itl.board,
    attribution.board,
    compare.board,
    nodes.board,
    chunking.board,
    cost.board,
    stream.board,
    runbook.board,
    self.board,
)
