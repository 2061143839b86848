"""The command `legato`: a client of the read endpoint, the admin socket and Grafana that prints reports.

``main.app`` is the Typer application; one module a command or view. What the views show comes from ``reports``. At import it may import
``auth``, ``dashboards``, ``reports`` and the root leaves only; commands that open a store or start the server import ``storage``, ``jobs``
and ``serve`` when they run.
"""
