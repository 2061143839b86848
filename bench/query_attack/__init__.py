"""Statements that a hostile reader sends: ``corpus.sql``, and the grammar that makes new ones. No part of it runs a statement."""
