"""The tables, as they came to be. The second migration of the outbox makes it a message table of Tickwheel's."""
