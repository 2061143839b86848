"""One module a dashboard: its panels, their SQL, and what each means."""

from dashboards.boards import attribution, chunking, cost, itl, itself, nodes, stream, streams

__all__ = ["BOARDS"]

BOARDS = (streams.board, itl.board, attribution.board, nodes.board, chunking.board, cost.board, stream.board, itself.board)
