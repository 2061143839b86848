"""The web page of `legato serve`: dashboards and streams in a browser, over the read path that every reader uses.

It offers ``app.create_app``. ``session`` keeps the credentials of browsers, ``panel_queries`` finds and expands the SQL of a dashboard's
panel, ``stream_view`` collects what the page of one stream shows. The files in ``static/`` are HTML, CSS and ES modules without a build
step. It may import ``query``, ``dashboards``, ``auth``, ``storage``, ``timeline`` and the root leaves, and it never writes.
"""
