"""Authentication: tokens, the credentials of a request, and TLS certificates.

It offers ``authenticate.Authenticator`` for both endpoints, ``tokens`` for the token file, ``tls.check`` for the start of the server
and ``tls.Certificate``, which takes a renewed certificate while it runs.
It may import the root leaves only.
"""
