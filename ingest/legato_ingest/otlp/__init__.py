"""The OTLP decoder: from the bytes of an OTLP request to Arrow tables of rows and rejections, without I/O.

It offers ``bodies.convert`` for a received body, ``convert`` for a parsed request, ``signals`` for the three signals, ``json_body`` for
JSON, ``http`` for bodies and replies, and ``batch`` for the types of the result. It may import ``timeline`` and the root leaves.
"""
