"""The write path: OTLP over HTTP and gRPC with one receiver, and the committer that deduplicates and stores the converted rows.

It offers ``app.create_app``, ``grpc_server.GrpcServer``, ``receiver.Receiver`` and ``committer.Committer``; one module each holds the
insert of a group of requests, deduplication, quotas of tenants and SLO counters. It may import ``otlp``, ``storage``, ``auth`` and the root
leaves.
"""
