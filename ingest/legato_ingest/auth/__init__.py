"""Authentication: tokens, the credentials of a request, and TLS certificates.

It offers ``authenticate.Authenticator`` for both endpoints, ``tokens`` for the token file and ``tls.check`` for the start of the server.
It may import the root leaves only.
"""
