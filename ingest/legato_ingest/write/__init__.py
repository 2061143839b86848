"""The write path: the OTLP endpoint, and the committer that deduplicates and stores the converted rows.

It offers ``app.create_app`` and ``committer.Committer``; one module each holds the insert of a group of requests, deduplication, quotas of
tenants and SLO counters. It may import ``otlp``, ``storage``, ``auth`` and the root leaves.
"""
