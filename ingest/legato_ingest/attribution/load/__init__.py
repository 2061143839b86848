"""The loaders of attribution: they query the store and fill the types of `model/`.

`evidence.load_evidence` returns everything that the store has about some streams, as one value per group of streams; `streams` has the
queries that find the streams.
The modules import `storage.sql`, the store's interface, `legato_ingest.definitions` and `model/`; they charge no time and write nothing.
"""
